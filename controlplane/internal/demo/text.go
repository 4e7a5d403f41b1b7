package demo

import (
	"fmt"
	"path/filepath"
	"strings"
)

// welcomeText returns the text that a user sees when everything runs.
func (p *parts) welcomeText() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	// Name the processes and their addresses.
	state := "state in " + filepath.Join(p.Dir, "state")
	if p.RedisURL != "" {
		state = "state in Redis"
	}
	line("")
	line("Weir runs. Ctrl-C ends it.")
	line("")
	line("  Envoy with the filter   %s   in front of a small service", p.envoy.URL())
	line("  control plane           %s    %s", p.controlPlane.URL(), state)
	line("  console                 %s/console   log in with the token below", p.controlPlane.URL())
	line("  Envoy's administration  http://127.0.0.1:%d", p.envoy.AdminPort)
	line("  logs                    %s", p.logPath())
	line("")
	// Print the first commands.
	line("Try it in another terminal, here:")
	line("")
	line("  # one request; its headers show the limit")
	line("  curl -i -X POST %s/shorten", p.envoy.URL())
	line("")
	line("  # the limit is 100 an hour: 150 requests get there")
	line("  curl -s -o /dev/null -w '%%{http_code}\\n' -X POST '%s/shorten?[1-150]' | sort | uniq -c", p.envoy.URL())
	line("")
	line("  # the limits, and which Envoy has which version of them")
	line("  %s check %s", p.Command, p.examplePath())
	for _, command := range []string{"apply " + p.examplePath(), "get nodes"} {
		line("  %s%s %s", p.clientEnvironment(), p.Command, command)
	}
	line("")
	line("Admin token: %s", p.adminToken)
	if p.token.stored {
		line("It is stored in %s, where `weir` finds it.", p.token.path)
	} else {
		line("%s holds another token and is left alone, so `weir` needs this one in WEIR_TOKEN.", p.token.path)
	}
	return b.String()
}

// clientEnvironment returns the variables that `weir` needs to find this control plane.
func (p *parts) clientEnvironment() string {
	var b strings.Builder
	if p.controlPlane.Port != 8080 {
		fmt.Fprintf(&b, "WEIR_SERVER=%s ", p.controlPlane.URL())
	}
	if !p.token.stored {
		fmt.Fprintf(&b, "WEIR_TOKEN=%s ", p.adminToken)
	}
	return b.String()
}
