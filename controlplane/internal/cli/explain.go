package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

type explainCommand struct {
	getFlags
	Method   string            `arg:"" help:"The method, like GET."`
	URL      string            `arg:"" help:"The address, like https://shop.example/api, or a path."`
	Header   []string          `short:"H" sep:"none" help:"A header of the request; may be given several times." placeholder:"'NAME: VALUE'"`
	ClientIP string            `name:"client-ip" help:"The client's address, after all proxies." placeholder:"ADDRESS"`
	In       uint64            `help:"Explain by this version, which is rolled out to a part of the Envoys." placeholder:"VERSION"`
	Verified map[string]string `help:"Values that Envoy verifies and no header has, by their source: jwt:CLAIM, spiffe, metadata:NS/KEY or cert_subject." placeholder:"SOURCE=VALUE"`
}

// requestBody returns the request in question in the form that the control plane reads.
func (c *explainCommand) requestBody() ([]byte, error) {
	type header struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	asked := map[string]any{"method": c.Method, "url": c.URL}
	var headers []header
	for _, text := range c.Header {
		name, value, ok := strings.Cut(text, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return nil, fmt.Errorf("-H %q: must be 'NAME: VALUE'", text)
		}
		headers = append(headers, header{strings.TrimSpace(name), strings.TrimSpace(value)})
	}
	if len(headers) > 0 {
		asked["headers"] = headers
	}
	if c.ClientIP != "" {
		asked["client_ip"] = c.ClientIP
	}
	if c.In > 0 {
		asked["version"] = c.In
	}
	if len(c.Verified) > 0 {
		asked["verified"] = c.Verified
	}
	return json.Marshal(asked)
}

// Run prints the answer that the request would get, and why.
func (c *explainCommand) Run(env *environment) error {
	// Ask the control plane.
	body, err := c.requestBody()
	if err != nil {
		return err
	}
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	got, err := cl.do(http.MethodPost, "/v1/explain", map[string]string{"Content-Type": "application/json"}, body)
	if err != nil {
		return err
	}
	var a api.ExplainedAnswer
	if printed, err := got.read(env, c.Output, &a); printed || err != nil {
		return err
	}
	// Print how to lift bans and the like, then the answer, then the policies.
	if !a.Complete {
		fmt.Fprintln(env.Err, "weir: the store does not answer: the remaining tokens are not known")
	}
	source := ""
	for _, p := range a.Policies {
		source = cmp.Or(source, p.Source)
	}
	printWaysOut(env.Out, a.Standing, source)
	printAnswer(env.Out, &a)
	if len(a.Policies) > 0 {
		if err := printMet(env.Out, a.Policies); err != nil {
			return err
		}
	}
	return printMissed(env.Out, a.Others, a.More)
}

// statusesOfGRPC are the names of the gRPC statuses of refusals.
var statusesOfGRPC = map[int]string{
	3: "INVALID_ARGUMENT", 7: "PERMISSION_DENIED", 8: "RESOURCE_EXHAUSTED", 14: "UNAVAILABLE",
}

// printAnswer prints the answer in a sentence.
func printAnswer(out io.Writer, a *api.ExplainedAnswer) {
	text := a.Answer.Sentence
	switch grpc := a.Answer.GrpcStatus; {
	case grpc != 0:
		text = fmt.Sprintf("refused with the gRPC status %d (%s): %s", grpc, statusesOfGRPC[grpc], text)
	case a.Answer.Status != 0:
		text = fmt.Sprintf("refused with %d: %s", a.Answer.Status, text)
	}
	switch {
	case a.RolledOut == 0:
		fmt.Fprintf(out, "%s (version %d)\n", text, a.Version)
	case a.RolledOut == a.Version:
		fmt.Fprintf(out, "At Envoys of version %d, which is rolled out, and at no other Envoys: %s\n", a.Version, text)
	default:
		fmt.Fprintf(out, "At Envoys of version %d: %s\n", a.Version, text)
		fmt.Fprintf(out, "Version %d is rolled out: Envoys that have it decide by it: see the same with --in %[1]d.\n",
			a.RolledOut)
	}
}

// printMet prints the policies that a request meets, with a line for each of their limits.
func printMet(out io.Writer, met []api.ExplainedPolicy) error {
	const head = "\nPOLICY\tSTATE\tMODE\tWHOSE\tCOST\tLEFT\tLIMIT\tLEASED OUT\tVERDICT\tKEY"
	return printTable(out, head, func(w io.Writer) {
		for _, p := range met {
			whose := cmp.Or(printable(strings.Join(p.Caller, " ")), "(all)")
			if p.Source != "" {
				whose += " --source " + p.Source
			}
			verdict := string(p.Verdict)
			if why := cmp.Or(p.Reason, p.Why); why != "" {
				verdict += ": " + why
			}
			line := func(left, limit, leased string) {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", p.Name, p.State, p.Mode, whose, p.Cost,
					left, limit, leased, verdict, p.Key)
			}
			if len(p.Limits) == 0 {
				line("-", "-", "-")
			}
			for _, b := range p.Limits {
				line(fmt.Sprintf("%d of %d", b.Level, b.Burst), b.Limit, fmt.Sprint(b.Leased))
			}
		}
	})
}

// printMissed prints the policies that a request does not meet, with the conditions that fail.
func printMissed(out io.Writer, others []api.MissedPolicy, more int) error {
	if len(others) == 0 {
		return nil
	}
	fmt.Fprintln(out, "\nNot met, those first that it nearly meets:")
	err := printTable(out, "\nPOLICY\tFAILS\tWHY", func(w io.Writer) {
		for _, miss := range others {
			fmt.Fprintf(w, "%s\t%d of %d\t%s\n", miss.Name, len(miss.Fails), max(miss.Conditions, len(miss.Fails)),
				printable(strings.Join(miss.Fails, "; ")))
		}
	})
	if err == nil && more > 0 {
		fmt.Fprintf(out, "and %s that it does not meet\n", plural(more, "policy", "policies"))
	}
	return err
}
