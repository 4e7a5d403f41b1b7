package cli

import (
	"strings"

	"github.com/alecthomas/kong"
)

// Command is a command as the command line knows it.
type Command struct {
	// Path is its words, like "weir rollout promote"; Help and Detail are what its help says.
	Path, Help, Detail string
}

// Commands are all commands that do something.
func Commands() (all []Command) {
	var cmds commands
	parser, err := newParser(&cmds, Streams{}, func(int) {})
	if err != nil {
		panic(err)
	}
	for _, leaf := range parser.Model.Leaves(true) {
		detail := leaf.Detail
		for node := leaf.Parent; node != nil && detail == ""; node = node.Parent {
			if node.Type == kong.CommandNode {
				detail = node.Detail
			}
		}
		words := []string{"weir"}
		for node := leaf; node != nil; node = node.Parent {
			if node.Type == kong.CommandNode {
				words = append(words[:1], append([]string{node.Name}, words[1:]...)...)
			}
		}
		all = append(all, Command{strings.Join(words, " "), leaf.Help, detail})
	}
	return all
}
