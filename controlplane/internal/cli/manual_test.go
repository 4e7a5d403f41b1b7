package cli_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/cli"
)

// The page has each command with its flags, and no text that troff would take for a request.
func TestTheManualHasEachCommand(t *testing.T) {
	var page, wrong bytes.Buffer
	code := cli.Main([]string{"manual"}, cli.Streams{Out: &page, Err: &wrong}, cli.Build{Version: "1.2.3-test"})
	if code != 0 || wrong.Len() > 0 {
		t.Fatalf("exit code %d\n%s", code, &wrong)
	}
	text := page.String()
	if !strings.HasPrefix(text, `.TH WEIR 1 "" "weir 1.2.3\-test" "User Commands"`+"\n") {
		t.Errorf("the page begins with %.80q", text)
	}
	for _, want := range []string{`.SS "weir serve"`, `.SS "weir consumers bypass <id>"`,
		`.SS "weir get versions [<version>]"`,
		".TP\n\\fI<tier>\\fR\n", ".TP\n\\fB\\-\\-listen=", "$WEIR_LISTEN",
		"\n.nf\n  weir apply policies.yaml \\-\\-dry\\-run\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	requests := []string{".TH ", ".SH ", ".SS ", ".TP", ".PP", ".sp", ".nf", ".fi"}
	for line := range strings.Lines(text) {
		isRequest := false
		for _, r := range requests {
			isRequest = isRequest || strings.HasPrefix(line, r)
		}
		if !isRequest && (strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'")) {
			t.Errorf("troff takes a text for a request: %q", line)
		}
	}
	if strings.Contains(text, "complete --") || strings.Contains(text, "weir manual") {
		t.Error("the page has a hidden command")
	}
}
