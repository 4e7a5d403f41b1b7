package chart

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/test/support/kubetest"
)

// before is the chart in its first form, which later ones must be able to replace.
const before = "testdata/weir-0.0.1.tgz"

// The modules that define other projects' kinds.
const (
	istio      = "istio.io/istio@v0.0.0-20260827124520-eed52ebb66ad"
	gateway    = "github.com/envoyproxy/gateway@v1.9.0"
	prometheus = "github.com/prometheus-operator/prometheus-operator@v0.83.0"
)

// cluster returns a Kubernetes API for a test, with the namespaces weir and shop, of the restricted
// profile.
func cluster(t *testing.T) *kubetest.Server {
	t.Helper()
	s := kubetest.Start(t)
	for _, name := range []string{"weir", "shop"} {
		s.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+name+
			", labels: {pod-security.kubernetes.io/enforce: restricted}}")
	}
	return s
}

// clusterWithKinds also knows the kinds of Istio, Envoy Gateway and Prometheus' operator.
func clusterWithKinds(t *testing.T) *kubetest.Server {
	t.Helper()
	s := cluster(t)
	s.Apply(t, content(t, filepath.Join(module(t, istio), "manifests/charts/base/files/crd-all.gen.yaml")))
	for _, kind := range []string{"servicemonitors", "prometheusrules"} {
		file := "example/prometheus-operator-crd/monitoring.coreos.com_" + kind + ".yaml"
		s.Apply(t, content(t, filepath.Join(module(t, prometheus), file)))
	}
	definitions, complaints, err := run(t, "", "helm", "template", "crds",
		filepath.Join(module(t, gateway), "charts/gateway-crds-helm"),
		"--set", "crds.gatewayAPI.enabled=true,crds.envoyGateway.enabled=true")
	if err != nil {
		t.Fatal(err, complaints)
	}
	s.Apply(t, definitions)
	return s
}

// module returns the folder of a Go module, which is downloaded if it is not there.
func module(t *testing.T, version string) string {
	t.Helper()
	command := exec.Command("go", "mod", "download", "-json", version)
	command.Dir = t.TempDir()
	output, err := command.Output()
	var answer struct{ Dir, Error string }
	if json.Unmarshal(output, &answer) != nil || answer.Dir == "" {
		t.Fatalf("%s: %v %s", version, err, answer.Error)
	}
	return answer.Dir
}

func content(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A release is the chart installed in a cluster.
type release struct {
	t *testing.T
	*kubetest.Server
}

func (r release) helm(arguments ...string) string {
	r.t.Helper()
	output, complaints, err := run(r.t, r.Kubeconfig, "helm", arguments...)
	if err != nil {
		r.t.Fatalf("helm %s: %v\n%s", strings.Join(arguments, " "), err, complaints)
	}
	return output
}

const inWeir = "/api/v1/namespaces/weir/"

// secret returns the decoded data of a Secret.
func (r release) secret(name string) map[string]string {
	r.t.Helper()
	o := r.Get(r.t, inWeir+"secrets/"+name)
	if o == nil {
		r.t.Fatalf("there is no Secret %s", name)
	}
	all := map[string]string{}
	data, _ := o["data"].(map[string]any)
	for key, value := range data {
		text, err := base64.StdEncoding.DecodeString(value.(string))
		if err != nil {
			r.t.Fatal(err)
		}
		all[key] = string(text)
	}
	return all
}

// mustAcceptPods posts the pod of the deployment, as a controller would: the namespace enforces the
// restricted profile.
func (r release) mustAcceptPods() {
	r.t.Helper()
	o := r.Get(r.t, "/apis/apps/v1/namespaces/weir/deployments/weir")
	if o == nil {
		r.t.Fatal("there is no Deployment")
	}
	template := o["spec"].(map[string]any)["template"].(map[string]any)
	pod := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "weir-1"},
		"spec": template["spec"]}
	if status, answer := r.post(pod); status != 201 {
		r.t.Errorf("the pod is refused: %d %s", status, answer)
	}
	// So that the test notices if nothing is enforced.
	first := template["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)
	delete(first["securityContext"].(map[string]any), "capabilities")
	if status, answer := r.post(pod); status != 403 {
		r.t.Errorf("a pod with capabilities is answered with %d %s", status, answer)
	}
}

func (r release) post(pod map[string]any) (status int, answer string) {
	r.t.Helper()
	body, err := json.Marshal(pod)
	if err != nil {
		r.t.Fatal(err)
	}
	status, answer, err = r.Call("POST", inWeir+"pods?dryRun=All", "application/json", string(body))
	if err != nil {
		r.t.Fatal(err)
	}
	return status, answer
}

// Each of the values is installed and uninstalled, so that the API looks at every field. A dry run
// would not do: it lets misspelt fields pass.
func TestInstalledWithEachOfTheValues(t *testing.T) {
	s := clusterWithKinds(t)
	values, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(values) < 4 {
		t.Fatal(values, err)
	}
	for _, file := range values {
		t.Run(filepath.Base(file), func(t *testing.T) {
			r := release{t, s}
			r.helm("install", "weir", chart, "-f", file)
			r.mustAcceptPods()
			r.helm("uninstall", "weir")
		})
	}
	t.Run("monitoring", func(t *testing.T) {
		r := release{t, s}
		all := "serviceMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true"
		r.helm("install", "weir", chart, "--set", all)
		if o := r.Get(t, "/apis/monitoring.coreos.com/v1/namespaces/weir/prometheusrules/weir"); o == nil {
			t.Error("there is no PrometheusRule")
		}
		r.helm("uninstall", "weir")
	})
	t.Run("a misspelt field", func(t *testing.T) {
		_, complaints, err := run(t, s.Kubeconfig, "helm", "install", "weir", chart, "--set", "affinity.nodeAfinity=x")
		if err == nil || !strings.Contains(complaints, "nodeAfinity") {
			t.Errorf("%v\n%s", err, complaints)
		}
	})
}

// An upgrade keeps the tokens and certificates of clients, and the claim with the store.
func TestUpgradedRolledBackAndUninstalled(t *testing.T) {
	r := release{t, cluster(t)}
	r.helm("install", "weir", before, "--set", "tls.enabled=true")
	tokens, certificate := r.secret("weir-tokens"), r.secret("weir-tls")
	if len(tokens["admin-token"]) < 32 || len(tokens["node-token"]) < 32 ||
		tokens["admin-token"] == tokens["node-token"] {
		t.Fatalf("the tokens have %d and %d characters", len(tokens["admin-token"]), len(tokens["node-token"]))
	}
	claim := r.uid("/api/v1/namespaces/weir/persistentvolumeclaims/weir")
	deployment := r.uid("/apis/apps/v1/namespaces/weir/deployments/weir")
	mustKeep := func(step string) {
		t.Helper()
		for name, want := range map[string]map[string]string{"weir-tokens": tokens, "weir-tls": certificate} {
			got := r.secret(name)
			for key := range want {
				if got[key] != want[key] {
					t.Errorf("%s: %s of %s has changed", step, key, name)
				}
			}
		}
		if r.uid("/api/v1/namespaces/weir/persistentvolumeclaims/weir") != claim {
			t.Errorf("%s: the claim was replaced", step)
		}
		if r.uid("/apis/apps/v1/namespaces/weir/deployments/weir") != deployment {
			t.Errorf("%s: the deployment was replaced", step)
		}
	}
	policies := "/apis/networking.k8s.io/v1/namespaces/weir/networkpolicies/weir"
	r.helm("upgrade", "weir", chart, "--reset-then-reuse-values", "--set", "env.WEIR_LOG_LEVEL=debug")
	mustKeep("after the upgrade")
	r.mustAcceptPods()
	if r.Get(t, policies) == nil {
		t.Error("the upgrade brought no NetworkPolicy")
	}
	r.helm("upgrade", "weir", chart, "--reset-values", "--set", "tls.enabled=true")
	mustKeep("after another upgrade")
	r.helm("rollback", "weir", "1")
	mustKeep("after the rollback")
	if r.Get(t, policies) != nil {
		t.Error("the rollback left the NetworkPolicy")
	}
	r.helm("uninstall", "weir")
	if r.Get(t, "/apis/apps/v1/namespaces/weir/deployments/weir") != nil {
		t.Error("the deployment is still there")
	}
	if r.uid("/api/v1/namespaces/weir/persistentvolumeclaims/weir") != claim {
		t.Error("the claim, and with it the store, is gone")
	}
	// The claim can be taken over.
	r.helm("install", "weir", chart)
	if r.uid("/api/v1/namespaces/weir/persistentvolumeclaims/weir") != claim {
		t.Error("the claim is another after the second installation")
	}
}

func (r release) uid(path string) string {
	r.t.Helper()
	o := r.Get(r.t, path)
	if o == nil {
		r.t.Fatalf("%s is not there", path)
	}
	return o["metadata"].(map[string]any)["uid"].(string)
}

// With the certificate that the chart makes, `weir serve` can be called by its names.
func TestTheMadeCertificateFits(t *testing.T) {
	output := render(t, "--set", "tls.enabled=true", "-n", "weir")
	objects, err := kubetest.Parse(output)
	if err != nil {
		t.Fatal(err)
	}
	dir, found := t.TempDir(), false
	for _, o := range objects {
		if o.Kind() != "Secret" || o.Name() != "weir-tls" {
			continue
		}
		found = true
		data := o["data"].(map[string]any)
		for _, key := range []string{"ca.crt", "tls.crt"} {
			text, err := base64.StdEncoding.DecodeString(data[key].(string))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, key), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !found {
		t.Fatal("there is no Secret weir-tls")
	}
	for _, name := range []string{"weir.weir.svc.cluster.local", "weir.weir", "weir"} {
		check := exec.Command("openssl", "verify", "-CAfile", "ca.crt", "-verify_hostname", name, "tls.crt")
		check.Dir = dir
		if output, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, output)
		}
	}
}

// The objects that kustomize builds of the base are accepted, and so are the objects of an overlay.
func TestTheBaseForKustomizeIsAccepted(t *testing.T) {
	r := release{t, cluster(t)}
	overlay := t.TempDir()
	base, err := filepath.Abs(filepath.Join(root, "deploy/kustomize"))
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(overlay, base)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, b := range pageBlocks(t) {
		if strings.HasPrefix(b.text, "apiVersion: kustomize") {
			text = strings.ReplaceAll(b.text, "../base", relative)
		}
	}
	if !strings.Contains(text, relative) {
		t.Fatalf("%s has no overlay", page)
	}
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{base, overlay} {
		built, complaints, err := run(t, "", "kustomize", "build", folder)
		if err != nil {
			t.Fatal(err, complaints)
		}
		r.Apply(t, built)
		r.mustAcceptPods()
	}
}
