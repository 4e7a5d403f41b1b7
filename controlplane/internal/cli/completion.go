package cli

import (
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// The scripts ask weir itself for completions, so that they fit this version. If weir offers
// nothing, the shell offers files.
var completions = map[string]string{
	"bash": `_weir() {
  local IFS=$'\n'
  COMPREPLY=($(weir complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _weir weir
`,
	"zsh": `#compdef weir
_weir() {
  local -a found
  found=("${(@f)$(weir complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "${found[1]}" ]]; then
    compadd -- $found
  else
    _files
  fi
}
compdef _weir weir
`,
	"fish": `function __weir_complete
  set -l typed (commandline -opc) (commandline -ct)
  weir complete -- $typed[2..-1] 2>/dev/null
end
complete -c weir -a '(__weir_complete)'
`,
}

// Run prints the script.
func (c *completionCommand) Run(env *environment) error {
	_, err := io.WriteString(env.Out, completions[c.Shell])
	return err
}

// The scripts call completeCommand with the words typed so far. The last word is to be completed.
type completeCommand struct {
	Words []string `arg:"" optional:""`
}

// Run prints the possible words, a line each.
func (c *completeCommand) Run(env *environment, app *kong.Kong) error {
	found := completeWord(app.Model.Node, c.Words)
	if len(found) == 0 {
		return nil
	}
	_, err := io.WriteString(env.Out, strings.Join(found, "\n")+"\n")
	return err
}

// completeWord finds the commands, flags and values that the last word may become.
func completeWord(node *kong.Node, words []string) (found []string) {
	last := ""
	if len(words) > 0 {
		words, last = words[:len(words)-1], words[len(words)-1]
	}
	var waiting *kong.Flag // for its value
	for _, word := range words {
		flag := waiting
		waiting = nil
		if flag == nil && strings.HasPrefix(word, "-") {
			waiting = flagOf(node, word)
			if waiting != nil && waiting.IsBool() {
				waiting = nil
			}
		} else if child := childOf(node, word); flag == nil && child != nil {
			node = child
		}
	}
	var all []string
	name, _, valued := strings.Cut(last, "=")
	switch {
	case waiting != nil:
		all = listValues(waiting.Value)
	case valued && strings.HasPrefix(name, "--"):
		if flag := flagOf(node, name); flag != nil {
			for _, v := range listValues(flag.Value) {
				all = append(all, name+"="+v)
			}
		}
	case strings.HasPrefix(last, "-"):
		for _, group := range node.AllFlags(true) {
			for _, flag := range group {
				all = append(all, "--"+flag.Name)
			}
		}
	default:
		all = listNext(node)
	}
	for _, candidate := range all {
		if strings.HasPrefix(candidate, last) && !slices.Contains(found, candidate) {
			found = append(found, candidate)
		}
	}
	slices.Sort(found)
	return found
}

// listNext returns the commands below a node, or the values that its first argument may have.
func listNext(node *kong.Node) (all []string) {
	for _, child := range node.Children {
		if child.Type == kong.CommandNode && !child.Hidden {
			all = append(all, child.Name)
		}
	}
	if len(all) == 0 && len(node.Positional) > 0 {
		return listValues(node.Positional[0])
	}
	return all
}

// listValues returns the values that a flag or an argument may have, if they are known.
func listValues(v *kong.Value) (all []string) {
	if v.Enum == "" {
		return nil
	}
	for _, e := range strings.Split(v.Enum, ",") {
		all = append(all, strings.TrimSpace(e))
	}
	return all
}

func childOf(node *kong.Node, name string) *kong.Node {
	for _, child := range node.Children {
		if child.Type == kong.CommandNode && child.Name == name {
			return child
		}
	}
	return nil
}

func flagOf(node *kong.Node, word string) *kong.Flag {
	if strings.Contains(word, "=") { // It has its value.
		word, _, _ = strings.Cut(word, "=")
	}
	for _, group := range node.AllFlags(false) {
		for _, flag := range group {
			if word == "--"+flag.Name || flag.Short != 0 && word == "-"+string(flag.Short) {
				return flag
			}
		}
	}
	return nil
}
