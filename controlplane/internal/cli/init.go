package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"text/tabwriter"

	"github.com/weir-proxy/weir/controlplane/internal/cli/presets"
	"github.com/weir-proxy/weir/shared/policy"
)

type initCommand struct {
	Preset string `arg:"" optional:"" help:"Which kind of service; without it the kinds are listed."`
	File   string `arg:"" optional:"" default:"policies.yaml" help:"Where to write it: a file that does not exist yet; - is the standard output."`
}

// Run writes a preset into a new file, or lists the presets.
func (c *initCommand) Run(env *environment) error {
	if c.Preset == "" {
		return listPresets(env.Out)
	}
	preset, err := findPreset(c.Preset)
	if err != nil {
		return err
	}
	if c.File == "-" {
		_, err := io.WriteString(env.Out, preset.Text)
		return err
	}
	if err := writeNew(c.File, preset.Text); err != nil {
		return err
	}
	const next = "%s: %s\nNext:\n  weir check %[1]s\n  weir apply %[1]s --dry-run\n"
	_, err = fmt.Fprintf(env.Out, next, c.File, preset.About)
	return err
}

func listPresets(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, p := range presets.List() {
		fmt.Fprintf(w, "%s\t%s\n", p.Name, p.About)
	}
	return w.Flush()
}

// findPreset returns the preset of a name.
func findPreset(name string) (presets.Preset, error) {
	var names []string
	for _, p := range presets.List() {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	better := "weir init lists them all"
	if near := policy.Guess(name, names); near != "" {
		better = "did you mean " + near + "?"
	}
	return presets.Preset{}, fmt.Errorf("there is no preset %s: %s", name, better)
}

// writeNew writes a file that does not exist yet.
func writeNew(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot write %s: it exists; name another file, or - for the standard output", name)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w; name a file in a folder that you may write", name,
			causeWithoutPath(err))
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("cannot write %s: %w", name, errors.Join(causeWithoutPath(err), os.Remove(name)))
	}
	return nil
}

// causeWithoutPath returns an error without the path that it names, which stands before it already.
func causeWithoutPath(err error) error {
	var of *fs.PathError
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}
