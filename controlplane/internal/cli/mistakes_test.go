package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/cli"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/policy"
)

// mistakesFile has mistakes that operators make, with the answer to each mistake, for people to
// read:
//
//	== the name of the mistake
//	-- file --
//	its text; with "escaped" behind the name as Go writes it
//	$ weir COMMAND, METHOD PATH or plugin, all with < FILE for the input
//	the answer
//
// WEIR_UPDATE_GOLDEN writes the answers anew. Read them then: each names cause and place, guesses
// the intention, and tells the remedy.
const mistakesFile = "testdata/mistakes.txt"

// TestMistakesAreAnswered holds each answer to the file, and asserts that no mistake is a success.
func TestMistakesAreAnswered(t *testing.T) {
	text, err := os.ReadFile(mistakesFile)
	if err != nil {
		t.Fatal(err)
	}
	golden, err := filepath.Abs(mistakesFile)
	if err != nil {
		t.Fatal(err)
	}
	server := "http://" + serve(t, t.Cleanup)
	t.Setenv("WEIR_SERVER", server)
	t.Setenv("WEIR_TOKEN", adminToken)
	t.Setenv("HOME", t.TempDir())
	var out strings.Builder
	count := 0
	for i, section := range strings.Split("\n"+string(text), "\n== ") {
		if i == 0 {
			out.WriteString(strings.TrimPrefix(section, "\n"))
			continue
		}
		if out.Len() > 0 {
			out.WriteString("\n")
		}
		fmt.Fprintf(&out, "== %s", answered(t, server, section, &count))
	}
	if count < 60 {
		t.Errorf("%d mistakes, want at least 60", count)
	}
	if got := out.String(); os.Getenv("WEIR_UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if got != string(text) {
		t.Errorf("the answers differ from %s at\n%s", mistakesFile, difference(got, string(text)))
	}
}

// difference is the first lines in which two texts differ.
func difference(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d: %s\nwant    %s", i+1, a[i], b[i])
		}
	}
	return "the end of one of them"
}

// answered is a section with the answers that its commands get now.
func answered(t *testing.T, server, section string, count *int) string {
	t.Chdir(t.TempDir())
	var out strings.Builder
	title, _, _ := strings.Cut(section, "\n")
	file, escaped, answer, setUp := "", false, false, strings.HasPrefix(title, "(")
	texts := map[string]string{}
	for i, line := range strings.Split(strings.TrimRight(section, "\n"), "\n") {
		name, isFile := strings.CutPrefix(line, "-- ")
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case isFile:
			name, _ = strings.CutSuffix(name, " --")
			file, escaped = strings.CutSuffix(name, " escaped")
			texts[file] = ""
		case isCommand:
			file, answer = "", true
			for name, text := range texts {
				write(t, name, text)
			}
			said, wrong := ask(t, server, command)
			if wrong == setUp {
				t.Errorf("%s: $ %s\nis answered as a success:\n%s", title, command, said)
			}
			if !setUp {
				*count++
			}
			line += "\n" + strings.TrimRight(said, "\n")
		case file != "":
			own := line + "\n"
			if escaped {
				plain, err := strconv.Unquote(`"` + line + `"`)
				if err != nil {
					t.Fatalf("%s: %s: %v", title, file, err)
				}
				own = plain
			}
			texts[file] += own
		case answer || i > 0:
			continue
		}
		out.WriteString(line + "\n")
	}
	return out.String()
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// words splits a command like a shell, and returns the file behind <.
func words(command string) (args []string, in string) {
	for _, w := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(command, -1) {
		args = append(args, strings.Trim(w, "'"))
	}
	if n := len(args); n > 2 && args[n-2] == "<" {
		return args[:n-2], args[n-1]
	}
	return args, ""
}

// ask runs a command and returns its output, and whether the output reports a mistake.
func ask(t *testing.T, server, command string) (said string, wrong bool) {
	t.Helper()
	args, file := words(command)
	var in []byte
	if file != "" {
		var err error
		if in, err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	switch args[0] {
	case "weir":
		code := cli.Main(args[1:], cli.Streams{In: bytes.NewReader(in), Out: &out, Err: &out},
			cli.Build{Version: "v0.0.0-test"})
		said, wrong = out.String(), code != 0
	case "plugin":
		doc, err := policy.ParsePlugin(in)
		if err == nil {
			_, err = policy.DecodePlugin(doc)
		}
		said, wrong = fmt.Sprint(err), err != nil
	default:
		said, wrong = request(t, server, args, in)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(server, "http://")
	return strings.NewReplacer(address, "SERVER", here, "DIR").Replace(said), wrong
}

// request is a call of the API as the console and scripts make it: METHOD PATH.
func request(t *testing.T, server string, args []string, body []byte) (said string, wrong bool) {
	t.Helper()
	r, err := http.NewRequest(args[0], server+args[1], bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+adminToken)
	if len(body) > 0 {
		r.Header.Set("Content-Type", "application/yaml")
		if json.Valid(body) || body[0] == '{' {
			r.Header.Set("Content-Type", "application/json")
		}
	}
	for _, h := range args[2:] {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	var p api.Problem
	if err := json.Unmarshal(text, &p); err != nil || p.Detail == "" {
		return answer.Status + ": " + string(text), answer.StatusCode >= 400
	}
	said = answer.Status + ": " + p.Detail
	for _, one := range p.Problems {
		said += "\n  " + policydoc.Sentence("", one)
	}
	return said, answer.StatusCode >= 400
}
