// Package cli is the command line.
package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// The exit codes.
const (
	exitOK      = 0
	exitProblem = 1
	exitUsage   = 2
)

// helpWidth is the largest width of a line of help.
const helpWidth = 80

// Streams are the input and the outputs of a command.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Build is the build that runs.
type Build struct {
	// Version is the version that people see.
	Version string
	// Files has the files of the tree that weir demo needs.
	Files fs.FS
}

type commands struct {
	Demo        demoCommand        `cmd:"" help:"Try Weir out on this machine: run Envoy with the filter, the control plane and a small service."`
	Serve       serveCommand       `cmd:"" help:"Run the control plane."`
	Init        initCommand        `cmd:"" help:"Write a commented policy file to begin with, for a usual kind of service."`
	Check       checkCommand       `cmd:"" help:"Check policy files without a server, and print the promise of each policy."`
	Apply       applyCommand       `cmd:"" help:"Make a file the policy set of a control plane."`
	Patch       patchCommand       `cmd:"" help:"Change some fields of one policy."`
	Diff        diffCommand        `cmd:"" help:"Print the changes that a file would make, or the changes between two versions."`
	Rollback    rollbackCommand    `cmd:"" help:"Go back: make a new version with the document of an older version."`
	Rollout     rolloutCommand     `cmd:"" help:"Watch, promote or take back a version that a share of the nodes has."`
	Get         getCommand         `cmd:"" help:"Print data of a control plane: policies, versions, nodes, bans and more."`
	Nodes       getNodes           `cmd:"" aliases:"node" help:"Print the Envoys, and which version and orders each has: the same as get nodes."`
	Consumers   consumersCommand   `cmd:"" aliases:"consumer" help:"Read and change single consumers: tier, own limits, ban, bypass."`
	Keys        keysCommand        `cmd:"" aliases:"key" help:"Read, reset and refill the buckets of single partition keys, and ban keys."`
	Enforcement enforcementCommand `cmd:"" help:"The kill switch: switch enforcement off, into shadow or on, at once."`
	Token       tokenCommand       `cmd:"" aliases:"tokens" help:"Make tokens for the control plane."`
	Simulate    simulateCommand    `cmd:"" help:"Replay an access log against policies: who would have been limited, when, how often, by which policy."`
	Import      importCommand      `cmd:"" help:"Make a policy set of another limiter's configuration, with a verdict for each of its items."`
	Why         whyCommand         `cmd:"" help:"Print why a consumer was limited."`
	Explain     explainCommand     `cmd:"" help:"Print the answer that a request would get: the policies that it meets and misses, its caller, and the tokens that are left."`
	Penalties   penaltiesCommand   `cmd:"" aliases:"penalty" help:"List the callers under a penalty, and pardon them."`
	Top         topCommand         `cmd:"" help:"Print the heaviest callers, during a rollout of both versions together."`
	Suggest     suggestCommand     `cmd:"" help:"Suggest a quota for a policy from the use of its callers."`
	Series      seriesCommand      `cmd:"" help:"Print decisions over time, during a rollout of both versions together."`
	Audit       auditCommand       `cmd:"" help:"Print the log of changes and their authors, newest first."`
	Usage       usageCommand       `cmd:"" help:"Print the remaining quota of your own key."`
	Version     versionCommand     `cmd:"" help:"Print the version."`

	Completion completionCommand `cmd:"" help:"Print the script that completes commands and flags in a shell."`
	Complete   completeCommand   `cmd:"" hidden:""`
	Manual     manualCommand     `cmd:"" hidden:""`
}

// environment is the command's surroundings beside its flags.
type environment struct {
	Streams
	build Build
}

const description = `Weir limits request rates over many Envoys. This is its control plane and command line.

Exit codes: 0 all is well, 1 something was refused or failed, 2 the command line cannot be read.`

// errReported ends a command that has printed its problem on the error stream.
var errReported = errors.New("reported")

// exit is the panic by which the parser ends the process; Main catches it.
type exit int

// Main runs a command and returns the exit code.
func Main(args []string, streams Streams, build Build) (code int) {
	// The parser ends the process by a panic, which becomes the exit code.
	defer func() {
		switch r := recover().(type) {
		case nil:
		case exit:
			code = int(r)
		default:
			panic(r)
		}
	}()
	// Parse the command line.
	var cmds commands
	parser, err := newParser(&cmds, streams, func(code int) { panic(exit(code)) })
	if err != nil {
		panic("BUG: the command line is not well-formed: " + err.Error())
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprint(streams.Err, explainMisuse(err))
		return exitUsage
	}
	// Run the command.
	err = parsed.Run(&environment{streams, build})
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errReported):
		return exitProblem
	}
	fmt.Fprintf(streams.Err, "weir: %s\n", explainFailure(err))
	return exitProblem
}

// explainFailure returns a command's error. The operating system's error about a file names a call
// in place of an attempt, and no remedy.
func explainFailure(err error) string {
	var failed *fs.PathError
	if !errors.As(err, &failed) || err.Error() != failed.Error() {
		return err.Error()
	}
	attempt := failed.Op
	if failed.Op == "stat" {
		attempt = "find"
	}
	return fmt.Sprintf("cannot %s %s: %v; check the path and your rights", attempt, failed.Path, failed.Err)
}

func newParser(cmds *commands, streams Streams, exit func(code int)) (*kong.Kong, error) {
	parser, err := kong.New(cmds, kong.Name("weir"), kong.Description(description),
		kong.Writers(streams.Out, streams.Err), kong.Bind(streams), kong.Exit(exit),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: helpWidth}),
		kong.ValueFormatter(withDefault), kong.WithBeforeApply(eachOnce),
		kong.WithBeforeApply(noneEmpty))
	if err != nil {
		return nil, err
	}
	for _, command := range parser.Model.Leaves(true) {
		if text := exampleText(pathOf(command)); text != "" {
			command.Detail = strings.TrimSpace(command.Detail + "\n\n" + text)
		}
	}
	return parser, nil
}

// pathOf returns the words that lead to a command, like rollout promote.
func pathOf(command *kong.Node) string {
	var words []string
	for ; command != nil && command.Type == kong.CommandNode; command = command.Parent {
		words = append(words, command.Name)
	}
	slices.Reverse(words)
	return strings.Join(words, " ")
}

type versionCommand struct{}

// Run prints the version.
func (versionCommand) Run(env *environment) error {
	_, err := fmt.Fprintln(env.Out, env.build.Version)
	return err
}
