package charts_test

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Values that must not be installed are files in testdata/refused. A file that begins with a number is one of the
// mismatches that users meet most; the comments on its top say what it does, and after "refused:" the whole of what the chart
// answers.
func TestRefusals(t *testing.T) {
	for _, file := range refusedFiles(t, "[0-9x]*.yaml") {
		t.Run(name(file), func(t *testing.T) {
			t.Parallel()
			want := comments(t, file, "refused: ")
			if len(want) == 0 {
				t.Fatal("the file does not say what is refused")
			}
			_, err := template(t, append([]string{"-f", file}, comments(t, file, "helm: ")...)...)
			if err == nil {
				t.Fatal("the chart renders these values")
			}
			if got := problems(err.Error()); !slices.Equal(got, want) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
			}
		})
	}
}

// mismatches is how many kinds of mismatch there are files for.
const mismatches = 22

// TestRefusalsAreComplete holds that each mismatch has a file, so that none is lost in a renaming.
func TestRefusalsAreComplete(t *testing.T) {
	rows := map[string]bool{}
	for _, file := range refusedFiles(t, "[0-9]*.yaml") {
		number, _, _ := strings.Cut(filepath.Base(file), "-")
		rows[number] = true
	}
	if len(rows) != mismatches {
		t.Errorf("testdata/refused has %d numbers, want %d", len(rows), mismatches)
	}
}

// What the schema refuses is told by helm in its own words; they are to name the value.
func TestSchemaRefusals(t *testing.T) {
	for _, file := range refusedFiles(t, "schema-*.yaml") {
		t.Run(name(file), func(t *testing.T) {
			t.Parallel()
			_, err := template(t, "-f", file)
			if err == nil {
				t.Fatal("the schema accepts these values")
			}
			for _, want := range comments(t, file, "refused: ") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the message lacks %q:\n%v", want, err)
				}
			}
		})
	}
}

// TestMissingValues holds that the chart renders nothing before it has been told what only the user knows, and then names
// that alone.
func TestMissingValues(t *testing.T) {
	const model = "model.name is empty: name the model that the engines load, or begin with a preset of the chart, of which " +
		"values-sim.yaml needs no GPU"
	const registry = "images.registry is empty, and no images of this project are published: build and push them (make push " +
		"REGISTRY=registry.example.com/tandem), and name that registry"
	own := "sidecar.image.repository=a/sidecar,epp.image.repository=a/epp,tools.image.repository=a/tandem"
	for name, test := range map[string]struct {
		given string // as --set takes it
		want  []string
	}{
		"nothing":                       {"", []string{model, registry}},
		"a contradiction":               {"engine.keepAliveSeconds=10", []string{model, registry}},
		"a model":                       {"model.name=acme/model", []string{registry}},
		"a registry":                    {"images.registry=registry.example.com", []string{model}},
		"both":                          {"model.name=acme/model,images.registry=registry.example.com", nil},
		"a repository for each image":   {"model.name=acme/model," + own, nil},
		"none for the simulated engine": {"model.name=acme/model,engine.type=sim," + own, []string{registry}},
		"none for the keeper":           {"model.name=acme/model,sidecar.keeper.enabled=true," + own, []string{registry}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := templateOf(t, "--set="+test.given)
			switch {
			case err == nil && test.want != nil:
				t.Fatal("the chart renders these values")
			case err != nil && !slices.Equal(problems(err.Error()), test.want):
				t.Errorf("got\n%v\nwant\n  %s", err, strings.Join(test.want, "\n  "))
			}
		})
	}
}

// TestRefusalOfSeveral checks that one message has all problems, so that users need not try again for each.
func TestRefusalOfSeveral(t *testing.T) {
	var args, want []string
	for _, file := range refusedFiles(t, "[0-9]*.yaml") {
		if strings.HasPrefix(filepath.Base(file), "08-") || strings.HasPrefix(filepath.Base(file), "10-") {
			args = append(args, "-f", file)
			want = append(want, comments(t, file, "refused: ")...)
		}
	}
	_, err := template(t, args...)
	if err == nil {
		t.Fatal("the chart renders these values")
	}
	for _, line := range want {
		if !slices.Contains(problems(err.Error()), line) {
			t.Errorf("the message lacks %q:\n%v", line, err)
		}
	}
}

// TestAdviceIsEnough takes the chart at its word: what it says to change is accepted, at the very edge.
func TestAdviceIsEnough(t *testing.T) {
	for name, set := range map[string]string{
		"other labels":              "prefill.podLabels.team=search,commonLabels.team=search",
		"port of prefill":           "sidecar.prefillAllow={10.0.0.0/8:8000,192.168.0.0/16}",
		"oldest engine":             "engine.image.tag=v0.22.0",
		"engine of a later patch":   "engine.image.tag=v0.32.1.post1",
		"engine of one's own":       "engine.image.repository=registry.example.com/engine,engine.image.tag=build-7",
		"moving tag and digest":     "sidecar.image.tag=main,sidecar.image.digest=sha256:" + strings.Repeat("0", 64),
		"equal parallelism":         "prefill.parallelism.tensor=2,decode.parallelism.tensor=2",
		"more decode parallelism":   "decode.parallelism.tensor=8",
		"latent attention":          "prefill.parallelism.tensor=4,decode.parallelism.tensor=2,model.mla=true",
		"one second longer":         "engine.keepAliveSeconds=241",
		"a gateway's connections":   "engine.keepAliveSeconds=60,mode=gateway,gateway.name=front",
		"wait as long as a lease":   "drainSeconds=43",
		"shared memory":             "decode.parallelism.tensor=2,decode.shmSize=1Gi",
		"little memory, no need":    "decode.shmSize=64Mi",
		"as many accelerators":      "decode.parallelism.tensor=2,decode.resources.limits.nvidia\\.com/gpu=2",
		"no prefill, none planned":  "prefill.replicas=0,epp.threshold=0",
		"largest body":              "epp.bodyLimit=256MiB",
		"a larger body":             "epp.bodyLimit=300MiB,sidecar.extraArgs={--buffer-limit=600MiB}",
		"RDMA on both sides":        "prefill.rdma.resource=rdma/ib,decode.rdma.resource=rdma/ib,engine.ucxTLS=rc\\,cuda_copy",
		"the least tier":            "sidecar.connector=offloading,engine.offloadSize=19Gi",
		"files for all":             "sidecar.connector=shared-storage,engine.sharedStorage.claimName=kv,engine.maxModelLen=4096",
		"NIXL and files":            "engine.sharedStorage.hostPath=/mnt/kv,engine.maxModelLen=4096,decode.parallelism.tensor=2",
		"equal Mooncake engines":    "sidecar.connector=mooncake,prefill.parallelism.tensor=2,decode.parallelism.tensor=2",
		"push between simulated":    "engine.type=sim,sidecar.connector=nixl-push",
		"encoders with a folder":    "encoder.connector=ec-example,encoder.sharedStorage.hostPath=/mnt/encodings",
		"another metric":            "prefill.autoscaling.enabled=true,prefill.autoscaling.metric=prefill_load",
		"shared argument, shared":   "engine.args={--dtype=float16}",
		"an account of one's own":   "serviceAccount.create=false,serviceAccount.name=picker",
		"another keeper":            "sidecar.image.tag=v1,sidecar.keeper.enabled=true,sidecar.keeper.image.tag=v1",
		"keepers that are heard":    "sidecar.keeper.enabled=true,engine.ucxTLS=rc\\,tcp",
		"all but one transport":     "sidecar.keeper.enabled=true,engine.ucxTLS=^cuda_ipc",
		"a release without a route": "mode=gateway,gateway.route=false",
		"a canary that gets none":   "canary.release=next-tandem",
		"room for an answer":        "engine.maxModelLen=2049",
		"all local":                 "engine.maxModelLen=1024,epp.threshold=0,prefill.replicas=0",
		"a second for the gateway":  "mode=gateway,gateway.name=front,gateway.requestTimeoutSeconds=91",
		"no limit at the gateway":   "mode=gateway,gateway.name=front,gateway.requestTimeoutSeconds=0",
		"wait for a held KV cache":  "sidecar.firstEventTimeoutSeconds=120,sidecar.keeper.enabled=true",
		"adapters in both roles":    "engine.args={--enable-lora,--lora-modules=sql=/adapters/sql}",
		"a flag without effect":     "epp.extraArgs={--ha-enable-leader-election}",
		"an alias of a flag":        "sidecar.extraArgs={--decode-use-tls}",
		"another type of KV cache":  "engine.kvCacheDtype=fp8_e4m3",
		"keepers need no key":       "sidecar.keeper.enabled=true,engine.apiKeySecret=key",
		"a batch server's own node": "batch.enabled=true,batch.maxUnavailable=0",
		"groups of all ranks":       "prefill.group.size=2,prefill.parallelism.data=16,decode.group.size=4,decode.parallelism.data=2,decode.parallelism.tensor=8",
		"groups that end together":  "decode.group.size=2,decode.parallelism.tensor=2,decode.maxUnavailable=2",
		"the longest name":          "decode.group.size=2,decode.parallelism.tensor=2,fullnameOverride=" + strings.Repeat("a", 41),
		"marks of other pods":       "epp.markPodsToGo=true,prefill.group.size=2,prefill.parallelism.tensor=2,decode.parallelism.tensor=2,decode.autoscaling.enabled=true,decode.autoscaling.metric=tandem_desired_replicas,decode.autoscaling.target=1",
		"eight ranks of one pod":    "decode.parallelism.data=8",
		"streams to prefill":        "sidecar.continuation.times=1,sidecar.continuation.onPrefill=true",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := template(t, "--set="+set); err != nil {
				t.Error(err)
			}
		})
	}
}

func refusedFiles(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "refused", pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no file is %s: %v", pattern, err)
	}
	return files
}

func name(file string) string { return strings.TrimSuffix(filepath.Base(file), ".yaml") }

// comments returns what the comments on top of a file say after a word.
func comments(t *testing.T, file, word string) (said []string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan() && strings.HasPrefix(lines.Text(), "#"); {
		if text, ok := strings.CutPrefix(lines.Text(), "# "+word); ok {
			said = append(said, text)
		}
	}
	return said
}

// problems returns the lines of a refusal, each a problem.
func problems(message string) (lines []string) {
	for line := range strings.Lines(message) {
		if problem, ok := strings.CutPrefix(strings.TrimSpace(line), "- "); ok {
			lines = append(lines, problem)
		}
	}
	return lines
}
