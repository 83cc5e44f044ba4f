package charts_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"maps"
	"math/big"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
	"github.com/tandem-serving/tandem/epp/policy"
)

// TestPickerConfig reads the picker's ConfigMaps with the picker's own readers.
func TestPickerConfig(t *testing.T) {
	for name, args := range cases(t) {
		t.Run(name, func(t *testing.T) {
			all := render(t, args...)
			c, err := config.Parse([]byte(data(t, all.named(t, "ConfigMap", "-epp"), "config.yaml")), plugin.Table)
			if err != nil {
				t.Fatal(err)
			}
			if len(c.Warnings) > 0 {
				t.Errorf("warnings: %v", c.Warnings)
			}
		})
	}
	t.Run("policy", func(t *testing.T) {
		all := render(t, cases(t)["policy"]...)
		p, err := policy.Parse([]byte(data(t, all.named(t, "ConfigMap", "-epp-policy"), "policy.yaml")))
		if err != nil {
			t.Fatal(err)
		}
		if priority, known := p.Priority("chat"); !known || priority != 10 {
			t.Errorf("the priority of chat is %d, known %t", priority, known)
		}
		if target, rewrite, _ := p.Target("tiny", rand.New(rand.NewPCG(1, 1))); target != "tandem/sim" || rewrite != "canary" {
			t.Errorf("tiny is answered by %s as %s says", target, rewrite)
		}
	})
}

func data(t *testing.T, configMap *unstructured.Unstructured, key string) string {
	t.Helper()
	text, found, err := unstructured.NestedString(configMap.Object, "data", key)
	if err != nil || !found {
		t.Fatalf("%s has no %s: %v", configMap.GetName(), key, err)
	}
	return text
}

// programs are those of this repository, which the last part of an image names.
var programs = []string{"batch", "epp", "sidecar", "sim", "tandem"}

// TestProgramsTakeTheirArguments returns every container's arguments, and those of every preStop hook, to the program itself,
// with the files that would be mounted, to check.
func TestProgramsTakeTheirArguments(t *testing.T) {
	for name, args := range cases(t) {
		t.Run(name, func(t *testing.T) {
			checked := 0
			all := render(t, args...)
			for _, pod := range all.pods(t) {
				for _, c := range containers(t, pod) {
					files := mount(t, all, pod, c)
					for _, command := range commands(t, c) {
						check(t, files, command)
						checked++
					}
				}
			}
			if checked < 5 {
				t.Errorf("only %d command lines were checked", checked)
			}
		})
	}
}

// commands are those that a container runs of this repository's programs, at its start and before its end.
func commands(t *testing.T, container map[string]any) [][]string {
	t.Helper()
	all := hooks(container)
	binary, _, _ := strings.Cut(path.Base(container["image"].(string)), ":")
	binary = strings.TrimSuffix(binary, "-nixl") // the same program, with more beside it
	if slices.Contains(programs, binary) {
		args, _, err := unstructured.NestedStringSlice(container, "args")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, append([]string{binary}, args...))
	}
	return all
}

// hooks returns the commands of a container's preStop hook: one, or several that a shell runs side by side.
func hooks(container map[string]any) (commands [][]string) {
	hook, found, _ := unstructured.NestedStringSlice(container, "lifecycle", "preStop", "exec", "command")
	switch {
	case !found:
		return nil
	case hook[0] != "/bin/sh":
		return [][]string{hook}
	}
	for command := range strings.SplitSeq(strings.TrimSuffix(hook[2], " & wait"), " & ") {
		commands = append(commands, strings.Fields(command))
	}
	return commands
}

// check has a program check its command line.
func check(t *testing.T, files *strings.Replacer, command []string) {
	t.Helper()
	var args []string
	for _, arg := range command[1:] {
		args = append(args, files.Replace(arg))
	}
	cmd := exec.CommandContext(t.Context(), program(t, path.Base(command[0])), append(args, "--check")...)
	cmd.Env = []string{"HOME=" + t.TempDir()}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
}

// mount writes the files that a container sees from ConfigMaps and Secrets of the release, and gives what turns their paths
// into those on this machine. Secrets hold a certificate and a secret, whatever they are for.
func mount(t *testing.T, all objects, pod *unstructured.Unstructured, container map[string]any) *strings.Replacer {
	t.Helper()
	places := map[string]string{"$(POD_IP)": "10.0.0.1"}
	mounts, _, err := unstructured.NestedSlice(container, "volumeMounts")
	if err != nil {
		t.Fatal(err)
	}
	volumes, _, err := unstructured.NestedSlice(pod.Object, "spec", "volumes")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		at := m.(map[string]any)
		for _, v := range volumes {
			volume := v.(map[string]any)
			if volume["name"] != at["name"] {
				continue
			}
			if dir := fill(t, all, volume); dir != "" {
				places[at["mountPath"].(string)] = dir
			}
		}
	}
	var pairs []string
	for _, place := range slices.Backward(slices.Sorted(maps.Keys(places))) { // the longer of two that begin alike first
		pairs = append(pairs, place, places[place])
	}
	return strings.NewReplacer(pairs...)
}

// queues are the message queues of a batch server.
const queues = "queues: [{broker: 'redis://redis:6379/0', queue: requests, results: results, endpoint: /v1/chat/completions}]"

// fill writes the files of a volume into a folder of this machine, if it has any.
func fill(t *testing.T, all objects, volume map[string]any) string {
	t.Helper()
	files := map[string]string{}
	if of, found, _ := unstructured.NestedString(volume, "configMap", "name"); found {
		files["ca.crt"], files["queues.yaml"] = certificate(t)["ca.crt"], queues // of ConfigMaps that the user makes
		for _, o := range all.of("ConfigMap") {
			if o.GetName() == of {
				files, _, _ = unstructured.NestedStringMap(o.Object, "data")
			}
		}
	}
	if _, found := volume["secret"]; found {
		files = certificate(t)
		files["VLLM_API_KEY"], files["key"], files["address"] = "swordfish", "swordfish", "swordfish"
		files["secret"], files["queues.yaml"] = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", queues
	}
	if len(files) == 0 {
		return ""
	}
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// certificate makes a certificate that signs itself, with its key, under the names that a Secret has them by.
func certificate(t *testing.T) map[string]string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	draft := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true,
		BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	signed, err := x509.CreateCertificate(crand.Reader, draft, draft, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	crt := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}))
	return map[string]string{"tls.crt": crt, "ca.crt": crt,
		"tls.key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))}
}
