package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// incident makes the state that a row of "At three in the morning" in docs/night/incidents.md asks
// about, and names the required content of the answer.
type incident struct {
	question string // the row's first cell
	make     string
	names    []string // expressions
	end      string
}

// incidents have the policies of the night in docs/start/walkthroughs.md, and one of requests in
// flight.
var incidents = []incident{
	{"all limits refuse too much",
		`build/weir patch api '{"limit": {"quota": 2}}'`,
		[]string{"api: limit 20 per 1h → 2 per 1h", "admin"},
		`build/weir rollback 2`},
	{"limits do not apply at all",
		`build/weir enforcement set off --reason 'a load test' --for 30m`,
		[]string{"OFF", "a load test", "weir enforcement lift"},
		`build/weir enforcement lift`},
	{"is it the limiter at all, and since when",
		callsOf("first", 30),
		[]string{`[1-9]\d* refused api`}, ""},
	{"one policy does",
		callsOf("loud", 50),
		[]string{`\b[1-9]\d* 0 api`, "refused by policy api", "the quota was used up"}, ""},
	{"a limit of requests in flight refuses",
		`for i in $(seq 50); do
curl -s -Z --parallel-immediate --parallel-max 40 -o /dev/null -w '%{http_code}\n' \
  'http://127.0.0.1:10000/slow?[1-400]' > $FOLDER/codes
grep -q 429 $FOLDER/codes && break
done; grep -q 429 $FOLDER/codes`,
		[]string{"100 100 utilisation flight"}, ""},
	{"one customer is limited",
		callsOf("good", 22),
		[]string{"refused by policy api", "the quota was used up", `\d of 20 [1-9]`}, ""},
	{"a caller floods",
		callsOf("noisy", 220),
		[]string{`\b[12]\d\d 0 api`}, ""},
	{"a caller gets 403 that should not",
		`build/weir keys ban api consumer:good --reason 'taken for another one'`,
		[]string{"policy api", "admin", "taken for another one"},
		`build/weir keys unban api consumer:good`},
	{"a change was wrong",
		`build/weir patch api '{"limit": {"quota": 3}}'`,
		[]string{"api: limit 20 per 1h → 3 per 1h", "version 2 to version 5: ~ api: limit 20 per 1h → 3 per 1h"},
		`build/weir rollback 2`},
	{"which Envoy follows which setting",
		`curl -s http://127.0.0.1:8080/node/v1/snapshot -H 'Authorization: Bearer an-old-token-that-is-none'`,
		[]string{"envoy-1", "127.0.0.1", "its token is unknown"}, ""},
}

// callsOf returns the command by which a caller sends requests, of which the policy lets 20
// through.
func callsOf(caller string, requests int) string {
	return strings.NewReplacer("CALLER", caller, "COUNT", strconv.Itoa(requests)).Replace(
		`curl -s -o /dev/null 'http://127.0.0.1:10000/api/x?[1-COUNT]' -H 'x-api-key: CALLER'`)
}

// answerIn bounds how long a question at three in the morning may take.
const answerIn = time.Minute

// At three in the morning an operator types the commands of the page until the answer names the
// cause: a clock runs from the moment at which the state is there.
func TestThePageForTheNightIsWalkedWithAClock(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	r.start()
	page := commandsOfTheNight(t)
	for _, w := range walks(t) {
		if w.title == "A night with six incidents" {
			set := w.blocks[0].text +
				"  - {name: flight, match: {paths: [/slow]}, partition: [], limit: {in_flight: 1}}\n"
			if err := os.WriteFile(filepath.Join(r.dir, "night.yaml"), []byte(set), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.must("build/weir apply $FOLDER/night.yaml --yes")
	r.awaitNodes()
	for _, i := range incidents {
		commands := page[i.question]
		if len(commands) == 0 {
			t.Fatalf("the page has no row %q with commands", i.question)
		}
		delete(page, i.question)
		r.must(i.make)
		r.mustAnswer(i, commands)
		r.must(i.end)
		r.awaitNodes()
	}
	for question := range page {
		t.Errorf("no incident asks %q", question)
	}
}

// mustAnswer asks until the output has the required content. Callers go on asking meanwhile: on a
// busy machine the control plane may have been too late the first time.
func (r *runner) mustAnswer(i incident, commands []string) {
	r.t.Helper()
	caller := regexp.MustCompile(`x-api-key: ([a-z]+)`).FindStringSubmatch(i.make)
	caller = append(caller, "", "first")
	script := strings.NewReplacer(
		"client_ip:ADDRESS", "consumer:"+caller[1], "--policy P", "--policy api", "METHOD URL", "GET /api/x",
		"'NAME: VALUE'", "'x-api-key: first'", "ADDRESS", "203.0.113.7", "get P ", "get api ", "CONSUMER", caller[1],
		"consumer:…", "consumer:"+caller[1], "series P", "series flight", "diff N", "diff 2",
	).Replace(strings.Join(commands, "\n"))
	begin, output := time.Now(), ""
	for asked := 1; time.Since(begin) < answerIn; asked++ {
		if asked%100 == 0 {
			r.must(i.make)
		}
		at := time.Now()
		output = r.must(script)
		lacking := slices.ContainsFunc(i.names, func(name string) bool {
			return !regexp.MustCompile(name).MatchString(strings.Join(strings.Fields(output), " "))
		})
		if !lacking {
			r.t.Logf("%s: answered after %.2f s; the commands took %.2f s\n%s", i.question,
				time.Since(begin).Seconds(), time.Since(at).Seconds(), output)
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	r.t.Fatalf("%s: within %v no answer has all of %q:\n%s\n%s", i.question, answerIn, i.names, script, output)
}

// must returns the output of a script that has to succeed; $FOLDER is the set-up's.
func (r *runner) must(script string) string {
	r.t.Helper()
	output, err := r.shell("exec 2>&1; FOLDER=" + r.dir + "\n" + script)
	if err != nil {
		r.t.Fatalf("%s: %v\n%s", script, err, output)
	}
	return output
}

// commandsOfTheNight returns the commands that the page has for each question at three in the
// morning.
func commandsOfTheNight(t *testing.T) map[string][]string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(repository, "docs/night/incidents.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(content), "\n## At three in the morning\n")
	section, _, _ = strings.Cut(section, "\n#")
	rows := map[string][]string{}
	for line := range strings.Lines(section) {
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) < 3 {
			continue
		}
		for _, command := range regexp.MustCompile("`(weir [^`]*)`").FindAllStringSubmatch(cells[1], -1) {
			question := strings.TrimPrefix(cells[0], "| ")
			rows[question] = append(rows[question], "build/"+command[1])
		}
	}
	return rows
}
