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
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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

// hooks returns the commands of this repository's programs in a container's preStop hook: one, or several that a shell runs side by side.
func hooks(container map[string]any) (commands [][]string) {
	hook, found, _ := unstructured.NestedStringSlice(container, "lifecycle", "preStop", "exec", "command")
	switch {
	case !found || hook[0] == "/bin/sleep":
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
	places := map[string]string{"$(POD_IP)": "10.0.0.1", "$LWS_LEADER_ADDRESS": "demo-tandem-decode-0.demo-tandem-decode.models"}
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
	files := strings.NewReplacer(pairs...)
	for _, dir := range places {
		configs, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range configs { // which name other files of the pod
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(files.Replace(string(text))), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return files
}

// queues are the message queues of a batch server.
const queues = "queues: [{broker: 'redis://redis:6379/0', queue: requests, results: results, endpoint: /v1/chat/completions}]"

// fill writes the files of a volume into a folder of this machine, if it has any.
func fill(t *testing.T, all objects, volume map[string]any) string {
	t.Helper()
	files := map[string]string{}
	if of, found, _ := unstructured.NestedString(volume, "configMap", "name"); found {
		files["ca.crt"], files["queues.yaml"] = authority().issue()["ca.crt"], queues // of ConfigMaps that the user makes
		for _, o := range all.of("ConfigMap") {
			if o.GetName() == of {
				files, _, _ = unstructured.NestedStringMap(o.Object, "data")
			}
		}
	}
	if _, found := volume["secret"]; found {
		files = authority().issue()
		files["VLLM_API_KEY"], files["key"], files["address"] = "swordfish", "swordfish-swordfish", "swordfish"
		files["secret"], files["queues.yaml"] = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", queues
	}
	if len(files) == 0 {
		return ""
	}
	if chosen := items(t, volume); chosen != nil {
		maps.DeleteFunc(files, func(name, _ string) bool { return !slices.Contains(chosen, name) })
	}
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// items returns the keys that a volume has of its Secret or ConfigMap, nil for all. None of the chart's has another name as a file.
func items(t *testing.T, volume map[string]any) (keys []string) {
	t.Helper()
	for _, kind := range []string{"secret", "configMap"} {
		list, _, err := unstructured.NestedSlice(volume, kind, "items")
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range list {
			if of := item.(map[string]any); of["key"] == of["path"] {
				keys = append(keys, of["key"].(string))
			}
		}
	}
	return keys
}

// signer is an authority that signs certificates.
type signer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool // with its own certificate only
}

// authority has signed what is in all Secrets, and is in all ConfigMaps that have one.
var authority = sync.OnceValue(newAuthority)

func newAuthority() *signer {
	s := &signer{key: newKey(), pool: x509.NewCertPool()}
	draft := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour)}
	var err error
	if s.cert, err = x509.ParseCertificate(sign(draft, draft, s.key, s.key)); err != nil {
		panic(err) // of bytes that crypto/x509 has made
	}
	s.pool.AddCert(s.cert)
	return s
}

// issue makes a certificate for the programs of a release that runs on loopback, with its key, under the names that a Secret has them by.
func (s *signer) issue() map[string]string {
	key := newKey()
	draft := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{"demo-tandem-epp.models.svc"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	signed := sign(draft, s.cert, key, s.key)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(err) // of a key that crypto/ecdsa has made
	}
	text := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return map[string]string{"tls.crt": text("CERTIFICATE", signed), "ca.crt": text("CERTIFICATE", s.cert.Raw), "tls.key": text("PRIVATE KEY", private)}
}

func newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		panic(err) // the system's random numbers do not fail
	}
	return key
}

func sign(draft, parent *x509.Certificate, key, by *ecdsa.PrivateKey) []byte {
	der, err := x509.CreateCertificate(crand.Reader, draft, parent, &key.PublicKey, by)
	if err != nil {
		panic(err) // drafts are constant but for their times
	}
	return der
}
