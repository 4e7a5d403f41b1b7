package compose

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/tools/stack"
)

// A part is a file, or a folder with all that is in it, of a base image's build.
type part struct{ name, path string }

// basesOf returns the parts of each image that stands in the place of one from a registry, by that
// image's name without its tag. The Dockerfile of an image is in the folder bases.
func basesOf(t *testing.T) map[string][]part {
	t.Helper()
	cache, err := stack.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	cached := func(name string) part { return part{filepath.Base(name), filepath.Join(cache, name)} }
	local := func(name string) part { return part{name, filepath.Join("bases", name)} }
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]part{
		"alpine":           {cached("bases/debian.tar"), local("adduser"), local("install")},
		"envoyproxy/envoy": {cached("bases/debian.tar"), cached("bin/envoy"), local("envoy-entrypoint")},
		"golang": {cached("bases/golang.tar"), {"go", strings.TrimSpace(string(root))},
			{"ca-certificates.crt", "/etc/ssl/certs/ca-certificates.crt"}},
		"redis":          {cached("bases/redis.tar"), local("redis-entrypoint")},
		"traefik/whoami": {{"whoami", buildWhoami(t)}},
	}
}

func buildWhoami(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "whoami")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", binary, "./whoami")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return binary
}

// TestImages builds all images in the order in which they need each other.
func TestImages(t *testing.T) {
	e := startEngine(t, "--bridge=none", "--iptables=false", "--ip6tables=false")
	bases := basesOf(t)
	for _, image := range foreignImages(t) {
		name, _, _ := strings.Cut(image, ":")
		if bases[name] == nil {
			t.Fatalf("no package takes the place of the image %s", image)
		}
		e.makeBase(t, image, bases[name])
	}
	commands := commandsOf(t, "Dockerfile")
	if len(commands) != 3 {
		t.Fatalf("the Dockerfile's comment has the commands %q, want three", commands)
	}
	for _, command := range commands {
		// The containers of this build reach the network as this machine does.
		e.run(t, strings.Replace(command, "docker build", "docker build --network host", 1))
	}
	t.Run("controlplane", e.checkControlPlane)
	t.Run("filter", e.checkFilter)
	t.Run("envoy", e.checkEnvoy)
	// Layers that a later build could use stay for a week.
	e.run(t, "docker image prune --force --filter until=168h")
}

// foreignImages returns the images that the Dockerfile and docker-compose.yml take from a registry.
func foreignImages(t *testing.T) (images []string) {
	t.Helper()
	stages := []string{"scratch"}
	for _, m := range regexp.MustCompile(`(?m)^FROM (\S+) AS (\S+)$`).FindAllStringSubmatch(readFile(t, "Dockerfile"), -1) {
		if !slices.Contains(stages, m[1]) {
			images = append(images, m[1])
		}
		stages = append(stages, m[2])
	}
	for _, m := range regexp.MustCompile(`(?m)^ +image: (\S+)$`).FindAllStringSubmatch(readFile(t, "docker-compose.yml"), -1) {
		images = append(images, m[1])
	}
	slices.Sort(images)
	return slices.Compact(images)
}

// makeBase builds an image that takes the place of one from a registry, unless it was built from
// the same files before.
func (e *engine) makeBase(t *testing.T, image string, parts []part) {
	t.Helper()
	name, _, _ := strings.Cut(image, ":")
	file := filepath.Base(name) + ".Dockerfile"
	parts = append(parts, part{file, filepath.Join("bases", file)})
	label := "from=" + describe(t, parts)
	if built, err := e.try(t.Context(), `docker image inspect --format 'from={{.Config.Labels.from}}' `+image); err == nil &&
		strings.TrimSpace(built) == label {
		return
	}
	build := exec.Command("docker", "build", "--network", "host", "--label", label, "-t", image, "-f", file, "-")
	build.Env = e.env
	input, err := build.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	build.Stdout, build.Stderr = &output, &output
	if err := build.Start(); err != nil {
		t.Fatal(err)
	}
	err = writeParts(input, parts)
	input.Close()
	if waited := build.Wait(); err != nil || waited != nil {
		t.Fatalf("cannot build %s: %v, %v\n%s", image, err, waited, output.String())
	}
}

// describe returns a sum over the content of small files, and over the paths, sizes and times of
// large files and folders.
func describe(t *testing.T, parts []part) string {
	t.Helper()
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version())
	for _, p := range parts {
		path, err := filepath.EvalSymlinks(p.path)
		if err != nil {
			t.Fatal(err, "; tools/setup.sh envoy compose installs it")
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() || info.Size() > 16<<20 {
			fmt.Fprintln(sum, p.name, path, info.Size(), info.ModTime())
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(sum, "%s %x\n", p.name, sha256.Sum256(content))
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:8])
}

// writeParts writes the archive that a build reads.
func writeParts(w io.Writer, parts []part) error {
	archive := tar.NewWriter(w)
	for _, p := range parts {
		root, err := filepath.EvalSymlinks(p.path)
		if err != nil {
			return err
		}
		err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			inside, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			return writePart(archive, filepath.Join(p.name, inside), path)
		})
		if err != nil {
			return err
		}
	}
	return archive.Close()
}

func writePart(archive *tar.Writer, name, path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(path); err != nil {
			return err
		}
	}
	header, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	header.Name = name
	if err := archive.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(archive, file)
	return err
}

// checkControlPlane runs the command line. The image has no C library, so the binary is static.
func (e *engine) checkControlPlane(t *testing.T) {
	if said := e.run(t, "docker run --rm --network none weir version"); !strings.Contains(said, "dev") {
		t.Errorf("the control plane says its version is %q, want dev", said)
	}
	if user := e.run(t, "docker image inspect --format '{{.Config.User}}' weir"); user != "weir\n" {
		t.Errorf("the user of the control plane's image is %q, want weir", user)
	}
}

// checkFilter compares the filter's image, which has this file alone, with the filter that `make
// build` has built.
func (e *engine) checkFilter(t *testing.T) {
	id := strings.TrimSpace(e.run(t, "docker create weir-filter /plugin.wasm"))
	defer e.run(t, "docker rm "+id)
	archive := tar.NewReader(strings.NewReader(e.run(t, "docker export "+id)))
	want, err := os.ReadFile(filepath.Join(repository, "build/weir.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for {
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Size == 0 { // The engine adds empty files and folders to each container.
			continue
		}
		files++
		got, err := io.ReadAll(archive)
		if err != nil || header.Name != "plugin.wasm" || !bytes.Equal(got, want) {
			t.Errorf("the image has %s of %d bytes, %v; want plugin.wasm as in build/weir.wasm, of %d bytes",
				header.Name, len(got), err, len(want))
		}
	}
	if files != 1 {
		t.Errorf("the image has %d files, want one", files)
	}
}

// checkEnvoy asks Envoy whether it would run with the configuration and the filter in its image.
func (e *engine) checkEnvoy(t *testing.T) {
	const line = "docker run --rm --network none --env WEIR_NODE_TOKEN=token weir-envoy " +
		"envoy --mode validate -c /etc/envoy/envoy.yaml 2>&1"
	if said := e.run(t, line); !strings.Contains(said, "OK") {
		t.Errorf("Envoy says of the configuration in its image:\n%s", said)
	}
}
