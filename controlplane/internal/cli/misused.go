package cli

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/weir-proxy/weir/shared/policy"
)

// unexpectedWord finds the word in the parser's message that is no command.
var unexpectedWord = regexp.MustCompile(`^unexpected argument (\S+?)(?:, did you mean .*)?$`)

// explainMisuse explains a mistake in the command line, and names the help to read.
func explainMisuse(err error) string {
	command := "weir"
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context != nil {
		if path := pathOf(deepestCommand(parse.Context)); path != "" {
			command += " " + path
		}
		better := cmp.Or(nameMeant(parse.Context, err.Error()), noFlag(deepestCommand(parse.Context), err.Error()))
		if better != "" {
			return fmt.Sprintf("weir: %s\nTry %s --help.\n", better, command)
		}
	}
	return fmt.Sprintf("weir: %s\nTry %s --help.\n", inPlainWords(err.Error()), command)
}

// unknownFlag finds the flag in the parser's message that the command does not have.
var unknownFlag = regexp.MustCompile(`^unknown flag --([a-z-]+)`)

// noFlag explains the use of a command if an unknown flag is one of its arguments; otherwise it is
// empty.
func noFlag(at *kong.Node, message string) string {
	found := unknownFlag.FindStringSubmatch(message)
	if found == nil || at == nil {
		return ""
	}
	usage, is := "weir "+pathOf(at), false
	for _, argument := range at.Positional {
		usage += " " + argument.Summary()
		is = is || argument.Name == found[1]
	}
	if !is {
		return ""
	}
	return fmt.Sprintf("there is no flag --%s, since the %[1]s is an argument: %s", found[1], usage)
}

// plainWords has the words that replace a message of the parser with the name of a type of Go in
// it.
var plainWords = []struct {
	of    *regexp.Regexp
	words string
}{
	{regexp.MustCompile(`expected a valid \d+ bit u?int but got (".*")`), "must be a whole number, not $1"},
	{regexp.MustCompile(`expected \S+ value but got "(-[^"]*)" \(short flag\); perhaps try (--[^=]+)=.*`),
		"$1 looks like a flag: a value that begins with - is written $2=$1"},
	{regexp.MustCompile(`expected duration but got (".*"): .*`), "must be a time like 500ms or 10s, not $1"},
}

func inPlainWords(message string) string {
	for _, p := range plainWords {
		message = p.of.ReplaceAllString(message, p.words)
	}
	return message
}

// eachOnce refuses a flag that takes one value and is given two, of which the last would count.
func eachOnce(c *kong.Context) error {
	given := map[*kong.Flag]bool{}
	for _, at := range c.Path {
		f := at.Flag
		if f == nil || f.IsBool() || f.IsCumulative() {
			continue
		}
		if given[f] {
			return fmt.Errorf("--%s is given twice: give it once", f.Name)
		}
		given[f] = true
	}
	return nil
}

// noneEmpty refuses an empty value, as from a variable that is not set. It would count as a missing
// value: an order for one policy would hold for all, or a consumer would lose its tier.
func noneEmpty(c *kong.Context) error {
	if at := deepestCommand(c); at != nil && at.Hidden { // A word that a shell completes may be empty.
		return nil
	}
	for _, at := range c.Path {
		switch {
		case at.Flag != nil && hasEmpty(c.Value(at)):
			return fmt.Errorf("--%s has an empty value: give a value, or leave it out", at.Flag.Name)
		case at.Positional != nil && hasEmpty(c.Value(at)):
			text := "give a value"
			if !at.Positional.Required {
				text += ", or leave it out"
			}
			return fmt.Errorf("<%s> is empty: %s", at.Positional.Name, text)
		}
	}
	return nil
}

// hasEmpty reports whether a value is an empty text, or a list with an empty text.
func hasEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String:
		return v.Len() == 0
	case reflect.Slice:
		for i := range v.Len() {
			if hasEmpty(v.Index(i)) {
				return true
			}
		}
	}
	return false
}

// deepestCommand returns the last command that the words lead to; nil for none.
func deepestCommand(c *kong.Context) *kong.Node {
	for _, at := range slices.Backward(c.Path) {
		if at.Command != nil {
			return at.Command
		}
	}
	return nil
}

// nameMeant names the command that was meant if a word is a thing that weir get prints, like weir
// policies.
func nameMeant(c *kong.Context, message string) string {
	// An unexpected word below a command.
	found := unexpectedWord.FindStringSubmatch(message)
	if found == nil {
		return ""
	}
	switch at := deepestCommand(c); {
	case at != nil && at.Name == "get":
		return outsideGet(c.Model.Node, found[1])
	case at != nil && at.Name == "nodes":
		return fmt.Sprintf("nodes are found by a part of their names: weir nodes --search %s", found[1])
	case at != nil:
		return suggestInGroup(at, found[1])
	case found[1] == "help":
		return "the commands are in weir --help, and the flags of one in weir COMMAND --help"
	}
	// An unknown command may be a thing that weir get prints.
	if strings.Contains(message, "did you mean") {
		return ""
	}
	get := childOf(c.Model.Node, "get")
	var names []string
	for _, child := range get.Children {
		if child.Name == found[1] || slices.Contains(child.Aliases, found[1]) {
			return fmt.Sprintf("there is no command %s; it is weir get %s", found[1], child.Name)
		}
		names = append(names, child.Name)
	}
	if near := policy.Guess(found[1], names); near != "" && near != found[1] {
		return fmt.Sprintf("there is no command %s: did you mean weir get %s?", found[1], near)
	}
	return ""
}

// outsideGet names the command that lists things which get does not print, like weir consumers
// list.
func outsideGet(root *kong.Node, word string) string {
	command := childOf(root, word)
	if command == nil {
		return ""
	}
	name := "weir " + command.Name
	for _, lists := range []string{"list", "get"} {
		if childOf(command, lists) != nil {
			name += " " + lists
			break
		}
	}
	return fmt.Sprintf("there is no command weir get %s: it is %s", word, name)
}

// suggestInGroup names the command that was meant where a word follows a group of commands, of
// which the parser then takes the default: weir rollout stats, weir enforcement off.
func suggestInGroup(at *kong.Node, word string) string {
	if at.Parent == nil || at.Parent.Type != kong.CommandNode || at.Parent.DefaultCmd != at {
		return ""
	}
	group := at.Parent.Path()
	if at.Parent.Name == "enforcement" && slices.Contains([]string{"enforce", "shadow", "off"}, word) {
		return fmt.Sprintf("there is no command %s %s: it is weir %[1]s set %[2]s --reason TEXT", group, word)
	}
	if word == "get" {
		return fmt.Sprintf("there is no command %s get: it is weir %[1]s %[2]s", group, at.Name)
	}
	var names []string
	for _, child := range at.Parent.Children {
		names = append(names, child.Name)
	}
	if near := policy.Guess(word, names); near != "" && near != word {
		return fmt.Sprintf("there is no command %s %s: did you mean weir %[1]s %[3]s?", group, word, near)
	}
	return ""
}

// withDefault returns a flag's help with its variable of the environment. It adds the default if a
// placeholder hides it.
func withDefault(v *kong.Value) string {
	text := kong.DefaultHelpValueFormatter(v)
	if v.Default == "" || v.Flag == nil || v.Flag.PlaceHolder == "" {
		return text
	}
	return fmt.Sprintf("%s Default: %s.", text, v.Default)
}
