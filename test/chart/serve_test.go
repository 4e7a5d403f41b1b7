package chart

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/kubetest"
	"github.com/weir-proxy/weir/tools/stack"
)

// A pod runs the command of the chart's Deployment, with its volumes as folders of this machine.
type pod struct {
	t       *testing.T
	dir     string
	objects []kubetest.Object
}

// find returns the object of a kind and name.
func (p pod) find(kind, name string) kubetest.Object {
	p.t.Helper()
	for _, o := range p.objects {
		if o.Kind() == kind && o.Name() == name {
			return o
		}
	}
	p.t.Fatalf("the chart makes no %s %s", kind, name)
	return nil
}

// at returns the place of a path of the container on this machine.
func (p pod) at(path string) string { return filepath.Join(p.dir, path) }

func (p pod) write(path, content string) {
	p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// mount writes the volume of a name below the path.
func (p pod) mount(volume map[string]any, path string) {
	p.t.Helper()
	if source, ok := volume["secret"].(map[string]any); ok {
		data := p.find("Secret", source["secretName"].(string))["data"].(map[string]any)
		for key, value := range data {
			text, err := base64.StdEncoding.DecodeString(value.(string))
			if err != nil {
				p.t.Fatal(err)
			}
			p.write(filepath.Join(p.at(path), key), string(text))
		}
	}
	if source, ok := volume["configMap"].(map[string]any); ok {
		for key, value := range p.find("ConfigMap", source["name"].(string))["data"].(map[string]any) {
			p.write(filepath.Join(p.at(path), key), value.(string))
		}
	}
	if source, ok := volume["persistentVolumeClaim"].(map[string]any); ok {
		p.find("PersistentVolumeClaim", source["claimName"].(string))
		if err := os.MkdirAll(p.at(path), 0o700); err != nil {
			p.t.Fatal(err)
		}
	}
}

// start builds the control plane and runs it with the container's arguments, environment and
// volumes.
func (p pod) start(port int) *stack.Process {
	p.t.Helper()
	template := p.find("Deployment",
		"weir")["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	container := template["containers"].([]any)[0].(map[string]any)
	volumes := map[string]map[string]any{}
	for _, v := range template["volumes"].([]any) {
		volumes[v.(map[string]any)["name"].(string)] = v.(map[string]any)
	}
	for _, m := range container["volumeMounts"].([]any) {
		m := m.(map[string]any)
		p.mount(volumes[m["name"].(string)], m["mountPath"].(string))
	}
	var environment, arguments []string
	for _, e := range container["env"].([]any) {
		e := e.(map[string]any)
		name, value := e["name"].(string), e["value"].(string)
		switch {
		case name == "WEIR_LISTEN":
			value = fmt.Sprintf("127.0.0.1:%d", port)
		case strings.HasPrefix(value, "/"):
			value = p.at(value)
		}
		environment = append(environment, name+"="+value)
	}
	for _, a := range container["args"].([]any) {
		arguments = append(arguments, a.(string))
	}
	binary := filepath.Join(p.dir, "weir")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", binary, ".")
	build.Dir = root
	if output, err := build.CombinedOutput(); err != nil {
		p.t.Fatalf("%v\n%s", err, output)
	}
	process, err := stack.Start(stack.Command{Name: "weir", Path: binary, Args: arguments, Env: environment})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(process.Kill)
	return process
}

// Nothing starts pods here, so the container's settings are given to a real control plane: it
// serves TLS with the certificate that the chart has made, takes the tokens and has the policies.
func TestTheContainersSettingsServe(t *testing.T) {
	rendered := render(t, "--namespace", "weir", "--set", "tls.enabled=true,env.WEIR_LOG_LEVEL=debug,drain=0s",
		"--set-json", `policyset.files={"a.yaml":"version: weir/v1\npolicies:\n  - {name: from-the-chart, partition: [client_ip], limit: {quota: 1, window: 1h}, mode: leased}\n"}`)
	objects, err := kubetest.Parse(rendered)
	if err != nil {
		t.Fatal(err)
	}
	port, err := stack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	p := pod{t, t.TempDir(), objects}
	process := p.start(port)
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM([]byte(content(t, p.at("/etc/weir/tls/ca.crt")))) {
		t.Fatal("ca.crt holds no certificate")
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: authorities, ServerName: "weir.weir.svc.cluster.local"}}}
	get := func(path, token string) (status int, body string) {
		request, err := http.NewRequest("GET", fmt.Sprintf("https://127.0.0.1:%d%s", port, path), nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(request)
		if err != nil {
			return 0, err.Error()
		}
		defer response.Body.Close()
		b, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(b)
	}
	admin, node := content(t, p.at("/etc/weir/tokens/admin-token")), content(t, p.at("/etc/weir/tokens/node-token"))
	wanted := func(path, token, want string) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			status, body := get(path, token)
			if status == 200 && strings.Contains(body, want) {
				return
			}
			if !process.Running() || time.Now().After(deadline) {
				t.Fatalf("%s is answered with %d %s, want %q\n%s", path, status, body, want, process.Tail(20))
			}
		}
	}
	wanted("/readyz", "", "")
	wanted("/healthz", "", "")
	wanted("/v1/policyset", admin, "from-the-chart")
	if status, _ := get("/v1/policyset", node); status != 403 {
		t.Errorf("the nodes' token reads the policy set: %d", status)
	}
	if _, err := os.Stat(p.at("/var/lib/weir/weir.db")); err != nil {
		t.Error("the store is not on the volume:", err)
	}
}
