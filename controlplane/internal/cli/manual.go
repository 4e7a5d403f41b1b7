package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

type manualCommand struct{}

// Run prints the page of the manual for man, made of the help of all commands.
func (manualCommand) Run(env *environment, app *kong.Kong) error {
	_, err := io.WriteString(env.Out, manualPage(app.Model, env.build.Version))
	return err
}

// manualPage returns the page as text for troff.
func manualPage(model *kong.Application, version string) string {
	var page troff
	page.request(`.TH WEIR 1 "" "weir %s" "User Commands"`, version)
	page.request(".SH NAME")
	page.text("weir - the control plane and the command line of the Weir rate limiter")
	page.request(".SH SYNOPSIS")
	page.text("weir COMMAND [ARGUMENTS] [FLAGS]")
	page.request(".SH DESCRIPTION")
	page.text(description)
	page.request(".SH COMMANDS")
	for _, command := range model.Leaves(true) {
		page.command(command)
	}
	page.request(".SH SEE ALSO")
	page.text("https://github.com/weir-proxy/weir/tree/main/docs")
	return page.String()
}

// A troff is a page for man as it is written.
type troff struct{ strings.Builder }

// escaped has the signs that troff would read as its own.
var escaped = strings.NewReplacer(`\`, `\e`, `-`, `\-`, `'`, `\(aq`, "`", `\(ga`, `^`, `\(ha`, `~`, `\(ti`)

// request writes a line for troff; the texts in it are escaped.
func (t *troff) request(format string, texts ...any) {
	for i, text := range texts {
		texts[i] = escaped.Replace(fmt.Sprint(text))
	}
	fmt.Fprintf(t, format+"\n", texts...)
}

// text writes paragraphs. Lines that begin with a space stay lines.
func (t *troff) text(text string) {
	indented := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if is := strings.HasPrefix(line, "  "); is != indented && line != "" {
			t.request(map[bool]string{true: ".nf", false: ".fi"}[is])
			indented = is
		}
		switch {
		case line == "":
			t.request(".sp")
		case strings.HasPrefix(line, "."):
			t.request(`\&%s`, line)
		default:
			t.request("%s", line)
		}
	}
	if indented {
		t.request(".fi")
	}
}

// command writes the help of a command, its arguments and its flags.
func (t *troff) command(command *kong.Node) {
	title := "weir " + pathOf(command)
	for _, argument := range command.Positional {
		title += " " + argument.Summary()
	}
	t.request(`.SS "%s"`, title)
	t.text(command.Help)
	t.request(".PP")
	for _, argument := range command.Positional {
		t.request(".TP\n\\fI%s\\fR", argument.Summary())
		t.text(argument.Help)
	}
	for _, group := range command.AllFlags(true) {
		for _, flag := range group {
			if flag.Name != "help" {
				t.request(".TP\n\\fB%s\\fR", flag.String())
				t.text(withDefault(flag.Value))
			}
		}
	}
	if command.Detail != "" {
		t.request(".PP")
		t.text(command.Detail)
	}
}
