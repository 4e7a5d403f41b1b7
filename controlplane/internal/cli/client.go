package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

const (
	requestTimeout = 30 * time.Second
	maxAnswer      = 16 << 20
)

// serverFlags name a control plane and the token for it.
type serverFlags struct {
	Server    string `help:"The control plane." default:"http://127.0.0.1:8080" env:"WEIR_SERVER" placeholder:"URL"`
	CAFile    string `help:"Authorities in PEM that may have issued the control plane's certificate, instead of the system's." env:"WEIR_CA_FILE" name:"ca-file" placeholder:"FILE"`
	TokenFile string `help:"File with the token. Without it the token is WEIR_TOKEN, else the file weir/token in the user's configuration directory, else the admin token (WEIR_ADMIN_TOKEN_FILE or WEIR_ADMIN_TOKEN)." env:"WEIR_TOKEN_FILE" placeholder:"FILE"`

	warn io.Writer
}

// AfterApply gives the client the stream of errors for its warnings: the parser calls it before
// Run.
func (f *serverFlags) AfterApply(streams Streams) error {
	f.warn = streams.Err
	return nil
}

// client talks to a control plane.
type client struct {
	base  *url.URL
	token string
	// source is the place that the token was read from, for messages.
	source string
	http   http.Client
	// warn is the stream for warnings about good answers; warned has the printed warnings, by
	// header.
	warn   io.Writer
	warned map[string]bool
}

// newClient returns a client with the caller's token.
func (f serverFlags) newClient() (*client, error) {
	c, err := f.newAnonymousClient()
	if err != nil {
		return nil, err
	}
	c.token, c.source, err = f.findToken()
	return c, err
}

// newAnonymousClient returns a client without a token, for operations that are open to every
// caller.
func (f serverFlags) newAnonymousClient() (*client, error) {
	base, err := url.Parse(f.Server)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("--server (WEIR_SERVER): %q is not like http://HOST:PORT", f.Server)
	}
	c := &client{base: base, warn: f.warn, warned: map[string]bool{}}
	c.http.Timeout = requestTimeout
	// The token is for one server.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if f.CAFile != "" {
		c.http.Transport, err = newTransport(f.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--ca-file (WEIR_CA_FILE): %w", err)
		}
	}
	return c, nil
}

// newTransport returns a transport that trusts the authorities in a file.
func newTransport(path string) (http.RoundTripper, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", path)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
	return transport, nil
}

// findToken looks for the token in the order that the flag's help gives.
func (f serverFlags) findToken() (token, source string, err error) {
	if f.TokenFile != "" {
		return tokenFile(f.TokenFile)
	}
	if token := os.Getenv("WEIR_TOKEN"); token != "" {
		return token, "WEIR_TOKEN", nil
	}
	path := "weir/token in the user's configuration directory"
	if dir, err := os.UserConfigDir(); err == nil {
		path = filepath.Join(dir, "weir", "token")
		if _, err := os.Stat(path); err == nil {
			return tokenFile(path)
		}
	}
	if path := os.Getenv("WEIR_ADMIN_TOKEN_FILE"); path != "" {
		return tokenFile(path)
	}
	if token := os.Getenv("WEIR_ADMIN_TOKEN"); token != "" {
		return token, "WEIR_ADMIN_TOKEN", nil
	}
	return "", "", fmt.Errorf("there is no token: give --token-file, set WEIR_TOKEN, or put it into %s", path)
}

func tokenFile(path string) (token, source string, err error) {
	b, err := os.ReadFile(path)
	return string(bytes.TrimSpace(b)), path, err
}

// answer is the control plane's answer to a request, like GET /v1/top.
type answer struct {
	request string
	header  http.Header
	body    []byte
}

// read decodes the answer for people into a value. With the output json it prints it as it came
// instead, and there is nothing more to print.
func (a answer) read(env *environment, output string, into any) (printed bool, err error) {
	if output == "json" {
		_, err := env.Out.Write(a.body)
		return true, err
	}
	return false, a.decode(into)
}

func (a answer) decode(into any) error {
	if err := json.Unmarshal(a.body, into); err != nil {
		return fmt.Errorf("the answer to %s cannot be read: %w", a.request, err)
	}
	return nil
}

// refusal is a problem document from the control plane.
type refusal struct{ api.Problem }

func (r *refusal) Error() string {
	text := fmt.Sprintf("refused (%d %s)", r.Status, r.Title)
	if r.Detail != "" {
		text += ": " + r.Detail
	}
	if r.Status >= http.StatusInternalServerError && r.RequestID != "" {
		text += " (request " + r.RequestID + ")"
	}
	return text
}

// do sends a request and returns the answer if its status is 2xx.
func (c *client) do(method, path string, header map[string]string, body []byte) (answer, error) {
	// Make the request.
	target, err := c.base.Parse(path)
	if err != nil {
		return answer{}, err
	}
	request, err := http.NewRequestWithContext(context.Background(), method, target.String(), bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	for name, value := range header {
		request.Header.Set(name, value)
	}
	// Send it and read the answer.
	response, err := c.http.Do(request)
	if err != nil {
		return answer{}, c.errUnreachable(err)
	}
	defer response.Body.Close()
	got, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return answer{}, c.errUnreachable(err)
	}
	// Only a control plane sends a request id.
	if response.Header.Get(api.RequestIDHeader) == "" {
		return answer{}, c.noWeir(errors.New(response.Status))
	}
	if response.StatusCode/100 == 2 {
		c.warnOnce(response.Header)
		return answer{method + " " + target.Path, response.Header, got}, nil
	}
	return answer{}, c.errRefused(response, got)
}

// warnOnce prints the warnings of a good answer, each once: the answer is a copy in memory while
// the store is away, the control plane's clock is wrong, or an order takes limits out of force. Any
// server may answer, so only printable text reaches the terminal.
func (c *client) warnOnce(header http.Header) {
	for _, warning := range []struct{ header, format string }{
		{api.HeldHeader, "weir: %s\n"}, {api.ClockHeader, "weir: %s\n"},
		{api.OrdersHeader, "weir: by an order limits are %s: weir enforcement says why\n"},
		{api.RolloutHeader, "weir: %s: see weir rollout\n"},
	} {
		if text := header.Get(warning.header); text != "" && c.warn != nil && !c.warned[warning.header] {
			fmt.Fprintf(c.warn, warning.format, printable(text))
			c.warned[warning.header] = true
		}
	}
}

func (c *client) errUnreachable(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("nothing listens at %s: is the control plane running? weir serve starts it; --server "+
			"(WEIR_SERVER) is its address", c.base)
	}
	return fmt.Errorf("the control plane at %s cannot be reached: %w", c.base, err)
}

// noWeir returns the error for an answer of a server that is not a control plane, with err if err
// is not nil.
func (c *client) noWeir(err error) error {
	text := fmt.Sprintf("the server at %s is not a control plane of Weir", c.base)
	if err != nil {
		text += fmt.Sprintf(" (%v)", err)
	}
	return errors.New(text + ": is --server (WEIR_SERVER) right?")
}

// errRefused returns the error for a refusing answer.
func (c *client) errRefused(response *http.Response, body []byte) error {
	r := &refusal{}
	media, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";")
	if media != api.ProblemType || json.Unmarshal(body, &r.Problem) != nil {
		return c.noWeir(errors.New(response.Status))
	}
	switch {
	case r.Status == http.StatusUnauthorized && r.Detail == api.UnknownToken:
		return fmt.Errorf("the control plane at %s does not know the token from %s: weir token new "+
			"makes a token, with the line for --tokens-file", c.base, c.source)
	case r.Status == http.StatusUnauthorized:
		return fmt.Errorf("the control plane at %s refuses the token from %s: %s", c.base, c.source, r.Detail)
	}
	return r
}
