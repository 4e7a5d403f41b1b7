package cli

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/alecthomas/kong"
)

// unexpectedWord finds the word in the parser's message that is no command.
var unexpectedWord = regexp.MustCompile(`^unexpected argument (\S+?)(?:, did you mean .*)?$`)

// misused says what is wrong with a command line, and whose help to read.
func misused(err error) string {
	command := "weir"
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context != nil {
		if path := pathOf(deepest(parse.Context)); path != "" {
			command += " " + path
		}
		if better := elsewhere(parse.Context, err.Error()); better != "" {
			return fmt.Sprintf("weir: %s\nTry %s --help.\n", better, command)
		}
	}
	return fmt.Sprintf("weir: %v\nTry %s --help.\n", err, command)
}

// deepest is the last command that the words lead to; nil for none.
func deepest(c *kong.Context) *kong.Node {
	for _, at := range slices.Backward(c.Path) {
		if at.Command != nil {
			return at.Command
		}
	}
	return nil
}

// elsewhere names the command that was meant where a word is one of get's, like weir policies.
func elsewhere(c *kong.Context, message string) string {
	found := unexpectedWord.FindStringSubmatch(message)
	if found == nil || deepest(c) != nil {
		return ""
	}
	get := childOf(c.Model.Node, "get")
	for _, child := range get.Children {
		if child.Name == found[1] || slices.Contains(child.Aliases, found[1]) {
			return fmt.Sprintf("there is no command %s; it is weir get %s", found[1], child.Name)
		}
	}
	return ""
}

// withDefault is a flag's help with its variable of the environment, and its default if a
// placeholder hides that.
func withDefault(v *kong.Value) string {
	text := kong.DefaultHelpValueFormatter(v)
	if v.Default == "" || v.Flag == nil || v.Flag.PlaceHolder == "" {
		return text
	}
	return fmt.Sprintf("%s Default: %s.", text, v.Default)
}
