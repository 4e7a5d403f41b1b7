package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// EnvoyOptions says how to run one Envoy. All addresses are of this machine.
type EnvoyOptions struct {
	// Binary is Envoy; empty asks EnvoyBinary.
	Binary string
	// Name stands before lines of output; empty is envoy.
	Name string
	// Config is the repository's envoy.yaml, Wasm the built filter.
	Config, Wasm string
	// FilterHost runs the filter; empty asks ChosenHost. NativeHost loads libweir.so beside Wasm.
	FilterHost FilterHost
	// Host is where requests come in; empty is 127.0.0.1.
	Host string
	// Port and AdminPort may be 0: Envoy chooses, Envoy.Port and AdminPort say what.
	Port, AdminPort int
	// UpstreamPort and ControlPlanePort are on 127.0.0.1.
	UpstreamPort, ControlPlanePort int
	// NodeID replaces the id in Config, unless empty. NodeToken is the filter's token for the
	// control plane.
	NodeID, NodeToken string
	// PluginConfig replaces the filter's configuration, unless empty: JSON in one line.
	PluginConfig string
	// Rewrite, if not nil, changes the finished configuration.
	Rewrite func(string) string
	// Concurrency is the number of workers; 0 means a worker for each CPU.
	Concurrency int
	// CPUs are the processors that Envoy may run on, see Command; empty is all.
	CPUs string
	// LogLevel is Envoy's; empty is warning.
	LogLevel string
	// BaseID, if not 0, allows hot restarts. Epoch is the number of earlier processes with that id;
	// the last of them hands over its listeners. Port must not be 0 then.
	BaseID, Epoch int
	// Env is added to its environment.
	Env []string
	// Dir takes the finished configuration; empty is a new folder for temporary files, removed by
	// Stop.
	Dir string
	// Out and Err, if not nil, receive Envoy's output: the access log and the log.
	Out, Err io.Writer
}

// Envoy is a running Envoy.
type Envoy struct {
	*Process
	// Host, Port and AdminPort are where it listens; the administration always on 127.0.0.1.
	Host            string
	Port, AdminPort int

	temporary string
}

// The texts of envoy.yaml that differ on one machine. Its header names them, and a test holds it to
// that.
const (
	adminText        = "{address: 0.0.0.0, port_value: 9901}"
	listenText       = "{address: 0.0.0.0, port_value: 10000}"
	upstreamText     = "{address: upstream, port_value: 8081}"
	controlPlaneText = "{address: controlplane, port_value: 8080}"
	wasmText         = "/etc/envoy/weir.wasm"
	pluginText       = `{"control_plane": {"cluster": "weir", "token": {"env": "WEIR_NODE_TOKEN"}, "authority": "weir"}}`
)

// FilterText matches the filter in envoy.yaml, AccessLogText the access log. Their groups are the
// line after it, which stays where something else, or nothing, takes its place.
var (
	FilterText    = regexp.MustCompile(`(?s) {18}- name: weir\n.*?\n( {18}- name: envoy\.filters\.http\.router\n)`)
	AccessLogText = regexp.MustCompile(`(?s)                access_log:.*?\n(                http_filters:\n)`)
)

// Configuration returns Config for this machine.
func (o EnvoyOptions) Configuration() (string, error) {
	// The header says each text once more, so it is left out.
	_, body, found := strings.Cut(o.Config, "\nnode:")
	if !found {
		return "", errors.New("this is not the repository's envoy.yaml: no line begins with node")
	}
	body = "node:" + body
	address := func(host string, port int) string {
		return fmt.Sprintf("{address: %q, port_value: %d}", host, port)
	}
	replacements := [][2]string{
		{adminText, address("127.0.0.1", o.AdminPort)},
		{listenText, address(o.listenHost(), o.Port)},
		{upstreamText, address("127.0.0.1", o.UpstreamPort)},
		{controlPlaneText, address("127.0.0.1", o.ControlPlanePort)},
		{wasmText, o.Wasm},
	}
	if o.PluginConfig != "" {
		replacements = append(replacements, [2]string{pluginText, o.PluginConfig})
	}
	for _, r := range replacements {
		if n := strings.Count(body, r[0]); n != 1 {
			return "", fmt.Errorf("envoy.yaml must have %s exactly once, it has it %d times", r[0], n)
		}
		body = strings.Replace(body, r[0], r[1], 1)
	}
	if o.Rewrite != nil {
		body = o.Rewrite(body)
	}
	return body, nil
}

func (o EnvoyOptions) listenHost() string {
	if o.Host == "" {
		return "127.0.0.1"
	}
	return o.Host
}

// StartEnvoy runs Envoy and waits until it serves, as long as ctx allows.
func StartEnvoy(ctx context.Context, o EnvoyOptions) (*Envoy, error) {
	e := &Envoy{Host: o.listenHost()}
	if err := e.startProcess(ctx, o); err != nil {
		e.Stop()
		return nil, err
	}
	return e, nil
}

func (e *Envoy) startProcess(ctx context.Context, o EnvoyOptions) error {
	// Find the binary and the filter.
	var err error
	if o.Binary == "" {
		o.Binary, err = EnvoyBinary()
		if err != nil {
			return err
		}
	}
	if o.FilterHost == "" {
		o.FilterHost, err = ChosenHost()
		if err != nil {
			return err
		}
	}
	o.Wasm, err = filepath.Abs(o.Wasm)
	if err != nil {
		return err
	}
	if _, err := os.Stat(o.FilterHost.File(o.Wasm)); err != nil {
		return fmt.Errorf("the filter is not built: %w; run `make %s`", err, o.FilterHost.Target())
	}
	// Write the configuration into the folder of the process.
	config, err := o.Configuration()
	if err == nil {
		config, err = o.FilterHost.Configure(config, o.Wasm)
	}
	if err != nil {
		return err
	}
	if o.Dir == "" {
		if e.temporary, err = os.MkdirTemp("", "weir-envoy-"); err != nil {
			return err
		}
		o.Dir = e.temporary
	}
	o.Dir, err = filepath.Abs(o.Dir)
	if err != nil {
		return err
	}
	configPath, adminPath := filepath.Join(o.Dir, "envoy.yaml"), filepath.Join(o.Dir, "admin-address")
	if err := os.WriteFile(configPath, []byte(config), 0o644); err != nil {
		return err
	}
	if err := os.RemoveAll(adminPath); err != nil {
		return err
	}
	// Start Envoy, and wait until it serves.
	e.Process, err = Start(o.processCommand(configPath, adminPath))
	if err != nil {
		return err
	}
	return e.AwaitReady(ctx, func(ctx context.Context) error { return e.checkReady(ctx, adminPath) })
}

func (o EnvoyOptions) processCommand(configPath, adminPath string) Command {
	level, name := o.LogLevel, o.Name
	if level == "" {
		level = "warning"
	}
	if name == "" {
		name = "envoy"
	}
	args := []string{
		"--config-path", configPath, "--admin-address-path", adminPath, "--drain-time-s", "1", "--log-level", level,
		// Access logs are written at once rather than every ten seconds.
		"--file-flush-interval-msec", "100",
	}
	if o.BaseID == 0 {
		// Without hot restart there is no shared memory for which two Envoys would need different
		// ids.
		args = append(args, "--disable-hot-restart")
	} else {
		args = append(args, "--base-id", strconv.Itoa(o.BaseID), "--restart-epoch", strconv.Itoa(o.Epoch),
			"--parent-shutdown-time-s", "3")
	}
	if o.NodeID != "" {
		args = append(args, "--service-node", o.NodeID)
	}
	if o.Concurrency > 0 {
		args = append(args, "--concurrency", strconv.Itoa(o.Concurrency))
	}
	return Command{
		Name: name, Path: o.Binary, Args: args, Dir: o.Dir, CPUs: o.CPUs, Out: o.Out, Err: o.Err,
		Env: append([]string{
			"WEIR_NODE_TOKEN=" + o.NodeToken, searchPathVariable + "=" + filepath.Dir(o.FilterHost.File(o.Wasm)),
		}, o.Env...),
	}
}

// checkReady learns the ports that Envoy chose and asks whether it serves.
func (e *Envoy) checkReady(ctx context.Context, adminPath string) error {
	// Read the port of the administration, and ask Envoy whether it is ready.
	content, err := os.ReadFile(adminPath)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(strings.TrimSpace(string(content)))
	if err != nil {
		return fmt.Errorf("address %q of Envoy's administration: %w", content, err)
	}
	e.AdminPort, err = strconv.Atoi(port)
	if err != nil {
		return err
	}
	if _, err := e.Admin(ctx, "/ready"); err != nil {
		return err
	}
	// Ask for the port of the listener.
	content, err = e.Admin(ctx, "/listeners?format=json")
	if err != nil {
		return err
	}
	var listeners struct {
		Statuses []struct {
			Address struct {
				Socket struct {
					Port int `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal(content, &listeners); err != nil {
		return err
	}
	if len(listeners.Statuses) != 1 || listeners.Statuses[0].Address.Socket.Port == 0 {
		return fmt.Errorf("Envoy has no listener yet: %s", content)
	}
	e.Port = listeners.Statuses[0].Address.Socket.Port
	return nil
}

// URL returns the address for requests.
func (e *Envoy) URL() string { return "http://" + net.JoinHostPort(e.Host, strconv.Itoa(e.Port)) }

// Admin asks Envoy's administration, which must answer 200.
func (e *Envoy) Admin(ctx context.Context, path string) ([]byte, error) {
	return getBody(ctx, client, fmt.Sprintf("http://127.0.0.1:%d%s", e.AdminPort, path))
}

// Stop ends Envoy, within three seconds.
func (e *Envoy) Stop() {
	if e.Process != nil {
		e.Process.Stop(2 * time.Second)
	}
	if e.temporary != "" {
		os.RemoveAll(e.temporary)
	}
}

// client does not keep connections: the server may be stopped and started again on the same port.
var client = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func getBody(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, response.Status, strings.TrimSpace(string(body)))
	}
	return body, err
}
