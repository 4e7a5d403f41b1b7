package cli

// Command is a command as the command line knows it.
type Command struct {
	// Path is its words, like rollout promote.
	Path string
	// Detail is the text of its help below the flags.
	Detail string
}

// Commands are all commands that do something.
func Commands() (all []Command) {
	parser, err := newParser(&commands{}, Streams{}, func(int) {})
	if err != nil {
		panic(err)
	}
	for _, command := range parser.Model.Leaves(true) {
		all = append(all, Command{pathOf(command), command.Detail})
	}
	return all
}

// Signals are the contexts of weir serve.
var Signals = signalContexts
