package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer/fromenvoy"
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer/fromkong"
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer/fromkube"
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer/fromnginx"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
)

type importCommand struct {
	Kong                importKong      `cmd:"" help:"Kong's declarative configuration: rate-limiting, rate-limiting-advanced, and consumers with limits of their own."`
	Nginx               importNginx     `cmd:"" help:"Configurations of nginx: limit_req with its zones, and the geo and map blocks that leave addresses or methods out."`
	Envoy               importEnvoy     `cmd:"" help:"Envoy's configuration: local_ratelimit filters, with the rate_limits that fill their descriptors."`
	IngressNginx        importIngress   `cmd:"" help:"Manifests of ingress-nginx: the annotations limit-rps, limit-rpm and their like."`
	EnvoyGateway        importGateway   `cmd:"" help:"Manifests of Envoy Gateway: the rate limits of BackendTrafficPolicy."`
	Istio               importIstio     `cmd:"" help:"Manifests of Istio: EnvoyFilters that limit, and the ConfigMaps of the rate limit service that they ask."`
	EnvoyproxyRatelimit importRatelimit `cmd:"" help:"Configurations of the rate limit service envoyproxy/ratelimit, a domain each."`
}

// importFlags are the flags of every source.
type importFlags struct {
	Out    string `help:"Write the policy set into this file and not to the standard output." placeholder:"FILE"`
	Shadow bool   `help:"Put all policies into shadow: they decide and count, and refuse nothing."`
	Output string `short:"o" enum:"text,json" default:"text" help:"text: the policy set, and the verdicts on the error stream. json: both in one object."`
}

// importHelp is shown below the flags of each source.
const importHelp = `Each item of the source gets a verdict with its line: exact, approximate (with the difference) or not possible (with the reason and a remedy). The exit code is 1 if an item was left out. The policy set is valid all the same.`

type importKong struct {
	Files []string `arg:"" name:"file" help:"Declarative configurations, YAML or JSON; - is the standard input."`
	importFlags
	Consumers string `help:"Write consumers with limits of their own into this file, for weir consumers import. It holds their keys." placeholder:"FILE"`
}

// Help returns the text below the flags.
func (importKong) Help() string { return importHelp }

// Run imports a configuration of Kong.
func (c *importKong) Run(env *environment) error {
	files, err := readSources(env, c.Files)
	if err != nil {
		return err
	}
	result, err := fromkong.Import(files)
	if err != nil {
		return err
	}
	if len(result.Consumers) > 0 && c.Consumers == "" && c.Output != "json" {
		fmt.Fprintln(env.Err, "weir: consumers have limits of their own: --consumers FILE writes them")
	}
	if c.Consumers != "" {
		// The file holds keys.
		if err := os.WriteFile(c.Consumers, result.Consumers, 0o600); err != nil {
			return err
		}
	}
	return c.printResult(env, result)
}

type importNginx struct {
	File string `arg:"" help:"The main file, such as /etc/nginx/nginx.conf; included files are read too. - is the standard input."`
	importFlags
}

// Help returns the text below the flags.
func (importNginx) Help() string { return importHelp }

// Run imports a configuration of nginx.
func (c *importNginx) Run(env *environment) error {
	result, err := fromnginx.Import(c.File, fromnginx.Files{
		Open: func(name string) ([]byte, error) { return readInput(env, name, importer.MaxBytes) }, Glob: filepath.Glob,
	})
	if err != nil {
		return err
	}
	return c.printResult(env, result)
}

type importEnvoy struct {
	Files []string `arg:"" name:"file" help:"Bootstraps, resources, or dumps of the admin interface (/config_dump), YAML or JSON; - is the standard input."`
	importFlags
}

// Help returns the text below the flags.
func (importEnvoy) Help() string { return importHelp }

// Run imports the local limits of an Envoy.
func (c *importEnvoy) Run(env *environment) error {
	return c.runImporter(env, c.Files, fromenvoy.Import)
}

type importIngress struct {
	Files []string `arg:"" name:"file" help:"Manifests of kind Ingress, and the controller's ConfigMap; - is the standard input."`
	importFlags
}

// Help returns the text below the flags.
func (importIngress) Help() string { return importHelp }

// Run imports the annotations of ingresses.
func (c *importIngress) Run(env *environment) error {
	return c.runImporter(env, c.Files, fromkube.ImportIngress)
}

type importGateway struct {
	Files []string `arg:"" name:"file" help:"Manifests of kind BackendTrafficPolicy, and the routes that they are for; - is the standard input."`
	importFlags
}

// Help returns the text below the flags.
func (importGateway) Help() string { return importHelp }

// Run imports the policies of an Envoy Gateway.
func (c *importGateway) Run(env *environment) error {
	return c.runImporter(env, c.Files, fromkube.ImportGateway)
}

type importIstio struct {
	Files []string `arg:"" name:"file" help:"Manifests of kind EnvoyFilter and ConfigMap; - is the standard input."`
	importFlags
}

// Help returns the text below the flags.
func (importIstio) Help() string { return importHelp }

// Run imports the limits of a mesh.
func (c *importIstio) Run(env *environment) error {
	return c.runImporter(env, c.Files, fromenvoy.Istio)
}

type importRatelimit struct {
	Files []string `arg:"" name:"config" help:"Configurations of the service; - is the standard input."`
	Envoy []string `help:"Configurations of the Envoys that ask the service. Their rate_limits name the source of each descriptor, so the new policies are for requests at Weir's filter. Without them the policies are for calls to weir serve --rls-listen." placeholder:"FILE"`
	importFlags
}

// Help returns the text below the flags.
func (importRatelimit) Help() string { return importHelp }

// Run imports the configurations of the rate limit service.
func (c *importRatelimit) Run(env *environment) error {
	envoys, err := readSources(env, c.Envoy)
	if err != nil {
		return err
	}
	return c.runImporter(env, c.Files, func(configs []importer.File) (*importer.Result, error) {
		return fromenvoy.RateLimitService(configs, envoys)
	})
}

// runImporter imports files with one of the importers.
func (f importFlags) runImporter(
	env *environment, names []string, read func([]importer.File) (*importer.Result, error),
) error {
	files, err := readSources(env, names)
	if err != nil {
		return err
	}
	result, err := read(files)
	if err != nil {
		return err
	}
	return f.printResult(env, result)
}

// printResult writes the policy set and the verdicts, and fails if an item was left out.
func (f importFlags) printResult(env *environment, r *importer.Result) (err error) {
	if len(r.Items) == 0 { // An empty set would look as if there were no limits to carry over.
		return errors.New("cannot import this: it holds nothing that concerns limits; weir import --help says " +
			"which command reads what")
	}
	if f.Shadow {
		if err := r.Shadow(); err != nil {
			return err
		}
	}
	if f.Out != "" {
		if err := os.WriteFile(f.Out, r.Document, 0o644); err != nil {
			return err
		}
	}
	switch {
	case f.Output == "json":
		err = f.printJSON(env, r)
	case f.Out == "":
		_, err = env.Out.Write(r.Document)
	}
	if err == nil && f.Output != "json" {
		err = printVerdicts(env.Err, r)
	}
	if err == nil && r.Count(importer.NotPossible) > 0 {
		err = errReported
	}
	return err
}

// printJSON writes everything as one object.
func (f importFlags) printJSON(env *environment, r *importer.Result) error {
	node, err := policydoc.Parse(r.Document, policydoc.YAML)
	if err != nil {
		return err
	}
	items := r.Items
	if items == nil {
		items = []importer.Item{}
	}
	return printJSON(env.Out, struct {
		PolicySet   json.RawMessage `json:"policyset"`
		Consumers   string          `json:"consumers,omitempty"`
		Items       []importer.Item `json:"items"`
		Exact       int             `json:"exact"`
		Approximate int             `json:"approximate"`
		NotPossible int             `json:"not_possible"`
	}{
		policydoc.ToJSON(node), string(r.Consumers), items,
		r.Count(importer.Exact), r.Count(importer.Approximate), r.Count(importer.NotPossible),
	})
}

// printVerdicts writes a line for each item, in the form that editors can follow, and a summary.
func printVerdicts(w io.Writer, r *importer.Result) error {
	var text strings.Builder
	for _, item := range r.Items {
		line := item.String()
		if len(item.Policies) > 0 {
			line += " [" + strings.Join(item.Policies, ", ") + "]"
		}
		text.WriteString(printable(line) + "\n")
	}
	fmt.Fprintf(&text, "%s, %s: %d exact, %d approximate, %d not possible\n",
		plural(r.Policies, "policy", "policies"), plural(len(r.Items), "item", "items"),
		r.Count(importer.Exact), r.Count(importer.Approximate), r.Count(importer.NotPossible))
	_, err := io.WriteString(w, text.String())
	return err
}

// readSources reads the files of a source.
func readSources(env *environment, names []string) (files []importer.File, err error) {
	for _, name := range names {
		text, err := readInput(env, name, importer.MaxBytes)
		if err != nil {
			return nil, err
		}
		if name == "-" {
			name = "stdin"
		}
		files = append(files, importer.File{Name: name, Text: text})
	}
	return files, nil
}
