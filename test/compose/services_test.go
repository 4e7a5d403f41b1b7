package compose

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

const (
	front    = "http://127.0.0.1:10000"
	back     = "http://127.0.0.1:8080"
	patience = time.Minute
	// returnTime is the time that docs/run/compatibility.md names: after a container's process has
	// died, limits are exact again within it.
	returnTime = 20 * time.Second
)

// ofProject selects the objects that Compose has made for docker-compose.yml.
const ofProject = " --quiet --filter label=com.docker.compose.project=weir"

// started are the services that run; all but upstream have a health check.
var started = []string{"controlplane", "redis", "envoy", "upstream"}

// steps run one after the other. Each begins with the services as the step before has left them.
var steps = []struct {
	name string
	run  func(*testing.T, *services)
}{
	{"the comment", followComment},
	{"the first refusal", refuse},
	{"the REST API", callAPI},
	{"users", checkUsers},
	{"roots", checkRoots},
	{"ports", checkPorts},
	{"policies", applyPolicies},
	{"kill controlplane", func(t *testing.T, s *services) { s.kill(t, "controlplane") }},
	{"kill redis", func(t *testing.T, s *services) { s.kill(t, "redis") }},
	{"kill envoy", func(t *testing.T, s *services) { s.kill(t, "envoy") }},
	{"kill upstream", func(t *testing.T, s *services) { s.kill(t, "upstream") }},
	{"upgrade", upgrade},
	{"stop", stop},
	{"down", keepVolumes},
	{"down with volumes", removeVolumes},
}

// services are the services of docker-compose.yml.
type services struct {
	*engine
	// token is the administrator's.
	token string
	// redisRestarted says that Redis has started again since the policies were applied.
	redisRestarted bool
}

func TestServices(t *testing.T) {
	if os.Getenv("WEIR_TESTS_APART") == "" {
		t.Fatal("this is the machine's own network: run make test-compose, which runs apart.sh")
	}
	s := &services{engine: startEngine(t)}
	if said, err := s.try(t.Context(), "docker compose version"); err != nil {
		t.Fatal("tools/setup.sh compose installs Compose: ", said)
	}
	const down = "docker compose down --volumes --remove-orphans"
	s.run(t, down) // An earlier run may not have come to its end.
	t.Cleanup(func() { s.run(t, down) })
	s.run(t, "docker tag weir weir-controlplane") // The other image has the name that Compose gives it.
	for _, step := range steps {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, s) }) {
			said, _ := s.try(t.Context(), "docker compose ps --all; docker compose logs --tail 15 2>&1")
			t.Fatalf("%s failed, and the later steps need it. The services wrote at last:\n%s", step.name, said)
		}
	}
}

// A container is the engine's description of a service's container.
type container struct {
	State struct {
		Status   string
		Pid      int
		ExitCode int
		Health   *struct{ Status string }
	}
	RestartCount int
	Image        string
	Config       struct{ Labels map[string]string }
}

// works reports whether the container runs, and is healthy if its image can say so.
func (c container) works() bool {
	return c.State.Status == "running" && (c.State.Health == nil || c.State.Health.Status == "healthy")
}

func (s *services) look(t *testing.T, service string) container {
	t.Helper()
	var all []container
	said := s.run(t, "docker inspect $(docker compose ps --all --quiet "+service+")")
	if err := json.Unmarshal([]byte(said), &all); err != nil || len(all) != 1 {
		t.Fatalf("%s: %v, the engine says %s", service, err, said)
	}
	return all[0]
}

func await(t *testing.T, what string, ready func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := stack.Await(ctx, what, ready); err != nil {
		t.Fatal(err)
	}
}

// followComment runs the commands of the compose file's comment, a second apart. It leaves out
// --build: TestImages has built the images, and a build here could not download anything.
func followComment(t *testing.T, s *services) {
	commands := commandsOf(t, "docker-compose.yml")
	if len(commands) != 4 {
		t.Fatalf("the comment has the commands %q, want four", commands)
	}
	outputs := map[string]string{}
	built := strings.Replace(commands[0], " --build", "", 1)
	if built == commands[0] {
		t.Errorf("the first command is %s, want --build", built)
	}
	for _, command := range append([]string{built}, commands[1:]...) {
		outputs[strings.Fields(command)[0]] = s.run(t, command)
		time.Sleep(time.Second)
	}
	if said := outputs["curl"]; !strings.HasPrefix(said, "HTTP/1.1 200 ") || !strings.Contains(said, `"shorten-per-ip";r=99`) {
		t.Errorf("the comment's request is answered with\n%s", said)
	}
	s.token = strings.TrimSpace(outputs["docker"]) // The last command prints it.
	if len(s.token) != 43 {
		t.Errorf("the administrator's token is %q, want 32 bytes in base64", s.token)
	}
	for _, service := range started {
		if c := s.look(t, service); !c.works() || (c.State.Health == nil) != (service == "upstream") {
			t.Errorf("%s is %+v", service, c)
		}
	}
	if c := s.look(t, "tokens"); c.State.Status != "exited" || c.State.ExitCode != 0 {
		t.Errorf("tokens is %+v", c)
	}
}

// refuse runs README's commands for the first refusal. The comment's request was the first of 100.
func refuse(t *testing.T, s *services) {
	readme := readFile(t, "README.md")
	commands := regexp.MustCompile("(?s)```sh\n([^`]*uniq -c[^`]*)```").FindStringSubmatch(readme)
	shown := regexp.MustCompile("(?s)```http\n(.*?)\n\n").FindStringSubmatch(readme)
	if commands == nil || shown == nil {
		t.Fatal("README.md does not show a refusal and the way to it")
	}
	said := s.run(t, commands[1])
	counts := regexp.MustCompile(`(?m)^ *(\d+) 200\n *(\d+) 429$`).FindStringSubmatch(said)
	_, refused, found := strings.Cut(said, " 429\n")
	if counts == nil || !found {
		t.Fatalf("README's commands print\n%s", said)
	}
	passed, _ := strconv.Atoi(counts[1]) // A token comes back in 36 s.
	stopped, _ := strconv.Atoi(counts[2])
	if passed < 98 || passed > 100 || passed+stopped != 150 {
		t.Errorf("%d of 150 passed and %d were refused, want 98, or one more for each 36 s", passed, stopped)
	}
	head, body, _ := strings.Cut(strings.ReplaceAll(refused, "\r\n", "\n"), "\n\n")
	for _, line := range strings.Split(shown[1], "\n") {
		name, _, _ := strings.Cut(line, ":")
		if !strings.Contains(head, strings.TrimSpace(name)) {
			t.Errorf("the refusal has no %s:\n%s", name, head)
		}
	}
	if !strings.Contains(body, `"violated-policies":["shorten-per-ip"]`) {
		t.Errorf("the refusal says %s", body)
	}
}

func callAPI(t *testing.T, s *services) {
	statuses := map[string]int{s.token: http.StatusOK, "": http.StatusUnauthorized, "x": http.StatusUnauthorized}
	for token, want := range statuses {
		request, err := http.NewRequestWithContext(t.Context(), "GET", back+"/v1/policyset", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("the REST API answers %d, want %d", response.StatusCode, want)
		}
	}
}

// The policies of the steps from here on. No ladder lets a request through, so each
// request that passes was granted.
const policies = `version: weir/v1
policies:
  - {name: steady, match: {paths: [/steady]}, partition: [], limit: {quota: 40, window: 2s}, mode: leased, on_failure: [deny]}
  - {name: spent, match: {paths: [/spent]}, partition: [], limit: {quota: 20, window: 24h}, mode: leased, on_failure: [deny]}
  - {name: asked, match: {paths: [/asked]}, partition: [], limit: {quota: 1000000, window: 1h}, mode: strict, on_failure: [deny]}
`

// The limit of steady: its burst, and its rate in a second.
const burst, rate = 40, 20

// applyPolicies stores the policies by the command line in the container, and uses up one of them.
func applyPolicies(t *testing.T, s *services) {
	s.run(t, "docker compose exec -T controlplane weir apply --yes - <<'END'\n"+policies+"END")
	awaitPolicies(t)
	passed := 0
	for range 40 {
		if a := ask(t, "/spent"); a.status == http.StatusOK {
			passed++
		}
	}
	if passed != 20 {
		t.Errorf("%d of 40 passed, want 20", passed)
	}
	s.mustBeSpent(t)
}

// awaitPolicies waits until Envoy has the policies and a control plane that decides.
func awaitPolicies(t *testing.T) {
	t.Helper()
	await(t, "a decision of the control plane", func(context.Context) error {
		if a := ask(t, "/asked"); a.status != http.StatusOK || !a.decided {
			return fmt.Errorf("the answer is %+v", a)
		}
		return nil
	})
}

// mustBeSpent checks that the control plane remembers the used tokens. After Redis has started
// again, refusals say for a while that their count may be lost.
func (s *services) mustBeSpent(t *testing.T) {
	t.Helper()
	problems := []string{"quota-exceeded"}
	if s.redisRestarted {
		problems = append(problems, "temporary-reduced-capacity")
	}
	for range 3 {
		a := ask(t, "/spent")
		_, problem, _ := strings.Cut(a.problem, "#")
		if a.status != http.StatusTooManyRequests || !slices.Contains(problems, problem) {
			t.Errorf("a policy that was used up answers %+v", a)
		}
	}
}

// An answer is a response of Envoy. Without one its status is 0.
type answer struct {
	status int
	// decided reports whether a policy has decided.
	decided bool
	// problem is the type in the body of a refusal.
	problem string
}

var client = http.Client{Timeout: 5 * time.Second}

func ask(t *testing.T, path string) answer {
	response, err := client.Post(front+path, "text/plain", nil)
	if err != nil {
		return answer{}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{}
	}
	var problem struct{ Type string }
	if response.StatusCode == http.StatusTooManyRequests {
		if err := json.Unmarshal(body, &problem); err != nil {
			t.Errorf("a refusal has the body %s: %v", body, err)
		}
	}
	return answer{response.StatusCode, response.Header.Get("Ratelimit") != "", problem.Type}
}

// upgrade replaces the image of the control plane, and goes back, under load.
func upgrade(t *testing.T, s *services) {
	for _, change := range []struct{ commands, label string }{
		{"docker build --target controlplane --label version=upgraded -t weir-controlplane . && " +
			"docker compose up -d --wait", "upgraded"},
		{"docker tag weir weir-controlplane && docker compose up -d --wait", ""},
	} {
		l := startLoad(t)
		time.Sleep(2 * time.Second)
		before := s.look(t, "controlplane")
		s.run(t, change.commands)
		ended := time.Now()
		now := s.look(t, "controlplane")
		if now.Image == before.Image || now.Config.Labels["version"] != change.label {
			t.Errorf("after %s the control plane is %+v", change.commands, now)
		}
		time.Sleep(4 * time.Second)
		l.end()
		l.mustHoldBound(t, 0)
		l.mustHaveNoErrors(t)
		l.mustBeBack(t, ended)
		s.mustBeSpent(t)
	}
}

// stop stops one service after the other, and starts them again. Docker kills a container that does
// not end in time, and its exit code is 137 then.
func stop(t *testing.T, s *services) {
	s.redisRestarted = true
	limits := map[string]time.Duration{"controlplane": 15 * time.Second}
	for _, service := range started {
		begin := time.Now()
		s.run(t, "docker compose stop "+service)
		took := time.Since(begin)
		code := s.look(t, service).State.ExitCode
		t.Logf("%s ended in %v with exit code %d", service, took.Round(10*time.Millisecond), code)
		most := max(limits[service], 10*time.Second)
		if killed := code == 137; killed || took > most || code != 0 && service != "upstream" {
			t.Errorf("%s ended in %v with exit code %d, want at most %v and 0", service, took, code, most)
		}
	}
	s.run(t, "docker compose up -d --wait")
	awaitPolicies(t)
	s.mustBeSpent(t)
}

// keepVolumes removes all containers. The nodes' tokens, the policies and the counts stay.
func keepVolumes(t *testing.T, s *services) {
	s.run(t, "docker compose down")
	want := []string{"weir_controlplane", "weir_redis", "weir_tokens"}
	if volumes := s.volumes(t); !slices.Equal(volumes, want) {
		t.Errorf("volumes after down: %v, want %v", volumes, want)
	}
	s.run(t, "docker compose up -d --wait")
	if token := s.readToken(t); token != s.token {
		t.Error("the administrator's token is another one after down and up")
	}
	awaitPolicies(t)
	s.mustBeSpent(t)
}

// removeVolumes removes all containers and volumes.
func removeVolumes(t *testing.T, s *services) {
	s.run(t, "docker compose down -v")
	if volumes := s.volumes(t); len(volumes) != 0 {
		t.Errorf("volumes after down -v: %v", volumes)
	}
	if left := s.run(t, "docker ps --all"+ofProject+"; docker network ls"+ofProject); left != "" {
		t.Errorf("containers and networks after down -v: %s", left)
	}
	s.run(t, "docker compose up -d --wait")
	if token := s.readToken(t); token == s.token {
		t.Error("the administrator's token is the same after down -v and up")
	}
	if a := ask(t, "/spent"); a.status != http.StatusOK || a.decided {
		t.Errorf("a policy has decided after down -v: %+v", a)
	}
}

func (s *services) volumes(t *testing.T) []string {
	t.Helper()
	names := strings.Fields(s.run(t, "docker volume ls"+ofProject))
	slices.Sort(names)
	return names
}

func (s *services) readToken(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(s.run(t, "docker compose exec -T controlplane cat /tokens/admin"))
}
