package tandem_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// made is a made-up house: files by path, and what cannot be read from them.
type made struct {
	files   map[string]string
	links   map[string][]string
	modules map[string]bool
}

func (m made) house(t *testing.T) house {
	t.Helper()
	h := house{files: map[string][]byte{}, links: m.links, modules: m.modules}
	for file, text := range m.files {
		h.files[file] = []byte(text)
		if strings.HasSuffix(file, ".go") {
			h.sources = append(h.sources, parse(t, file, []byte(text)))
		}
	}
	return h
}

// imports returns a Go file that imports the given packages, those of ours without
// the module path.
func imports(pkg string, paths ...string) string {
	var b strings.Builder
	b.WriteString("package " + pkg + "\n")
	for _, p := range paths {
		if !strings.Contains(p, ".") && p != "C" {
			p = module + "/" + p
		}
		b.WriteString("import _ \"" + p + "\"\n")
	}
	return b.String()
}

func file(path, text string) made { return made{files: map[string]string{path: text}} }

// madeUp is for each rule what it must let pass and what it must catch. A
// breach is given by the beginning of its line.
var madeUp = []struct {
	rule, name string
	given      made
	breach     string // empty: none
}{
	{"imports", "epp imports pd", file("epp/a.go", imports("epp", "pd", "transfer")), ""},
	{"imports", "epp imports sidecar", file("epp/a.go", imports("epp", "sidecar")), "epp/a.go imports sidecar"},
	{"imports", "sidecar imports epp", file("sidecar/lease/a.go", imports("lease", "epp/pool")), "sidecar/lease/a.go imports epp/pool"},
	{"imports", "sidecar imports epp in a test", file("sidecar/a_test.go", imports("sidecar", "epp")), "sidecar/a_test.go imports epp"},
	{"imports", "sidecar tested on the simulator", file("sidecar/a_test.go", imports("sidecar", "sim")), ""},
	{"imports", "sidecar runs the simulator", file("sidecar/a.go", imports("sidecar", "sim")), "sidecar/a.go imports sim"},
	{"imports", "pd imports its own", file("pd/dialect/a.go", imports("dialect", "pd", "pd/body")), ""},
	{"imports", "pd imports transfer", file("pd/a.go", imports("pd", "transfer")), "pd/a.go imports transfer"},
	{"imports", "pd tested on sidecar", file("pd/a_test.go", imports("pd", "sidecar")), "pd/a_test.go imports sidecar"},
	{"imports", "transfer imports pd", file("transfer/nixl/a.go", imports("nixl", "pd")), "transfer/nixl/a.go imports pd"},
	{"imports", "transfer tested on the simulator's transport", file("transfer/nixl/a_test.go", imports("nixl", "sim/transport")), ""},
	{"imports", "transfer tested on the simulator", file("transfer/nixl/a_test.go", imports("nixl", "sim")), "transfer/nixl/a_test.go imports sim"},
	{"imports", "transfer uses the simulator's transport", file("transfer/keeper/a.go", imports("keeper", "sim/transport")), "transfer/keeper/a.go imports sim/transport"},
	{"imports", "the simulator's transport imports the simulator", file("sim/transport/a.go", imports("transport", "sim")), "sim/transport/a.go imports sim"},
	{"imports", "a similar name is another package", file("pdx/a.go", imports("pdx", "transfer")), ""},
	{"imports", "extproc imports the scheduler", file("epp/extproc/a.go", imports("extproc", "epp/sched", "epp/flow")), ""},
	{"imports", "the scheduler imports extproc", file("epp/sched/a.go", imports("sched", "epp/extproc")), "epp/sched/a.go imports epp/extproc"},
	{"imports", "epp imports a package below it", file("epp/a.go", imports("epp", "epp/pool")), "epp/a.go imports epp/pool"},
	{"imports", "plugin uses prefix", file("epp/plugin/a.go", imports("plugin", "epp", "epp/prefix")), ""},
	{"imports", "config imports the plugins", file("epp/config/a.go", imports("config", "epp/plugin")), "epp/config/a.go imports epp/plugin"},
	{"imports", "epp's main imports epp's packages", file("cmd/epp/main.go", imports("main", "epp/kube", "cmd/internal/boot")), ""},
	{"imports", "epp's main runs the simulator", file("cmd/epp/main.go", imports("main", "sim")), "cmd/epp/main.go imports sim"},
	{"imports", "sidecar's main runs a stack", file("cmd/sidecar/main.go", imports("main", "stack")), "cmd/sidecar/main.go imports stack"},
	{"imports", "keeper's main opens the library", file("cmd/keeper/main.go", imports("main", "transfer/nixl", "transfer/keeper", "cmd/internal/boot")), ""},
	{"imports", "keeper's main for simulated engines", file("cmd/keeper/tcp.go", imports("main", "sim/transport")), ""},
	{"imports", "keeper's main runs the simulator", file("cmd/keeper/main.go", imports("main", "sim")), "cmd/keeper/main.go imports sim"},
	{"imports", "keeper's main imports the sidecar", file("cmd/keeper/main.go", imports("main", "sidecar/lease")), "cmd/keeper/main.go imports sidecar/lease"},
	{"imports", "boot runs a stack", file("cmd/internal/boot/a.go", imports("boot", "stack")), "cmd/internal/boot/a.go imports stack"},
	{"imports", "a main's test runs a stack", file("cmd/sidecar/main_test.go", imports("main", "stack")), ""},
	{"imports", "a test package uses the harness", file("e2e/chaos/a_test.go", imports("chaos", "e2e/harness")), ""},
	{"imports", "the harness uses another helper", file("e2e/harness/a.go", imports("harness", "e2e/answer", "stack")), ""},
	{"imports", "a program's test uses a helper of e2e", file("epp/kube/a_test.go", imports("kube", "e2e/otlp")), ""},
	{"imports", "a program uses a helper of e2e", file("cmd/tandem/bench/a.go", imports("bench", "e2e/answer")), "cmd/tandem/bench/a.go imports e2e/answer"},
	{"imports", "a test uses the module of the cluster", file("charts/a_test.go", imports("charts", "e2e/kube")), "charts/a_test.go imports e2e/kube"},
	{"imports", "the cluster uses the control plane", file("e2e/kube/a.go", imports("kube", "e2e/controlplane", "e2e/kube/container")), ""},
	{"imports", "simulator's main", file("cmd/sim/main.go", imports("main", "sim")), ""},
	{"imports", "user's tool", file("cmd/tandem/bench/a.go", imports("bench", "stack", "epp/extproc/client")), ""},
	{"imports", "a package imports a command", file("stack/a.go", imports("stack", "cmd/tandem/bench")), "stack/a.go imports cmd/tandem/bench"},

	{"only importers", "Envoy in its package", file("epp/extproc/a.go", imports("extproc", "github.com/envoyproxy/go-control-plane/envoy/config/core/v3")), ""},
	{"only importers", "Envoy elsewhere", file("epp/a_test.go", imports("epp", "github.com/envoyproxy/go-control-plane/envoy")), "epp/a_test.go imports github.com/envoyproxy"},
	{"only importers", "Kubernetes in its package", file("epp/kube/a.go", imports("kube", "sigs.k8s.io/controller-runtime/pkg/client")), ""},
	{"only importers", "Kubernetes elsewhere", file("epp/pool/a.go", imports("pool", "sigs.k8s.io/controller-runtime")), "epp/pool/a.go imports sigs.k8s.io"},
	{"only importers", "C in its package", file("transfer/nixl/a.go", imports("nixl", "C")), ""},
	{"only importers", "C elsewhere", file("transfer/a.go", imports("transfer", "C")), "transfer/a.go imports C"},

	{"links", "clean", made{links: map[string][]string{"cmd/epp": {"fmt", module + "/epp", "k8s.io/api"}}}, ""},
	{"links", "epp links the gateway", made{links: map[string][]string{"cmd/epp": {module + "/stack/gateway"}}}, "cmd/epp links"},
	{"links", "sidecar links the library", made{links: map[string][]string{"cmd/sidecar": {module + "/transfer/keeper", module + "/transfer/nixl"}}}, "cmd/sidecar links " + module + "/transfer/nixl"},
	{"links", "keeper links the simulator's transport", made{links: map[string][]string{"cmd/keeper": {module + "/sim/transport"}}}, "cmd/keeper links"},
	{"links", "sidecar links Kubernetes", made{links: map[string][]string{"cmd/sidecar": {"k8s.io/client-go"}}}, "cmd/sidecar links k8s.io/client-go"},

	{"doc.go", "documented", made{files: map[string]string{"pd/a.go": "package pd", "pd/doc.go": "// Package pd is a package.\npackage pd"}}, ""},
	{"doc.go", "a main needs none", file("cmd/epp/main.go", "package main"), ""},
	{"doc.go", "only tests need none", file("e2e/a_test.go", "package e2e"), ""},
	{"doc.go", "missing", file("pd/a.go", "// Package pd is a package.\npackage pd"), "pd has no doc.go"},
	{"doc.go", "empty", file("pd/doc.go", "package pd"), "pd has no doc.go"},

	{"depth", "three folders", file("epp/extproc/client/a.go", "package client"), ""},
	{"depth", "test data may be deeper", file("epp/config/testdata/bad/deep/er/a.yaml", ""), ""},
	{"depth", "four folders", file("epp/a/b/c/d.yaml", ""), "epp/a/b/c/d.yaml lies deeper"},

	{"sleep", "in a test", file("pd/a_test.go", "package pd\nfunc f() { time.Sleep(1) }"), "pd/a_test.go calls time.Sleep"},
	{"sleep", "on a fake clock", file("pd/a_test.go", "package pd\nfunc f() { synctest.Test(t, func(t *testing.T) { time.Sleep(1) }) }"), ""},
	{"sleep", "not a test", file("pd/a.go", "package pd\nfunc f() { time.Sleep(1) }"), ""},

	{"wall clock", "a number of the wall clock", file("epp/pool/a.go", "package pool\nvar at = time.Now().UnixNano()"), "epp/pool/a.go calls UnixNano"},
	{"wall clock", "a moment", file("epp/pool/a.go", "package pool\nvar past = time.Unix(1, 0)"), ""},
	{"wall clock", "an answer of the simulator", file("sim/api/a.go", "package api\nvar at = time.Now().Unix()"), ""},

	{"init", "function", file("pd/a.go", "package pd\nfunc init() {}"), "pd/a.go declares init()"},
	{"init", "method", file("pd/a.go", "package pd\nfunc (t T) init() {}"), ""},

	{"flags", "read", file("cmd/a/a.go", "package a\ntype s struct { A int `flag:\"a\"` }\nfunc f(x s) int { return x.A }"), ""},
	{"flags", "set only", file("cmd/a/a.go", "package a\ntype s struct { A int `flag:\"a\"` }\nvar x = s{A: 1}"), "cmd/a/a.go declares --a"},
	{"flags", "refused", file("cmd/a/a.go", "package a\ntype s struct { A int `flag:\"a\" refused:\"use b\"` }"), ""},
	{"words", "a pronoun without an actor", file("new/a.go", "package a\n// No"+"body reads it."), "new/a.go:2 has"},
	{"words", "a metaphor in a page", file("new/page.md", "the front"+" door"), "new/page.md:1 has"},
	{"words", "a verb for release", file("new/values.yaml", "# Blocks are given "+"back."), "new/values.yaml:1 has"},
	{"words", "a package", file("new/a.go", "package a\n// It is a "+"room of its own."), "new/a.go:2 has"},
	{"words", "space", file("new/a.go", "package a\n// There is room for two."), ""},
	{"words", "inside a word", file("new/a.go", "package a\n// screws"), ""},
	{"words", "in a recording", file("new/testdata/a.yaml", "no"+"body"), ""},
	{"words", "the page that lists them", file("docs/glossary.md", "not: no"+"body"), ""},
	{"leftovers", "in a comment", file("Makefile", "# TO"+"DO: later"), "Makefile:1 has"},
	{"leftovers", "in code", file("pd/a.go", "package pd\nvar c = context.TO"+"DO()"), "pd/a.go:2 has"},
	{"leftovers", "in a recording", file("pd/testdata/a.txt", "TO"+"DO"), ""},
	{"leftovers", "inside a word", file("a.txt", "TO"+"DOS"), ""},

	{"metric names", "llm-d's", file("epp/a.go", `package epp; var o = prometheus.CounterOpts{Name: "llm_d_epp_request_running"}`), ""},
	{"metric names", "another one of llm-d", file("epp/a.go", `package epp; var o = prometheus.CounterOpts{Name: "llm_d_epp_request_total"}`),
		`epp/a.go declares the metric "llm_d_epp_request_total"`},
	{"metric names", "ours", file("pd/a.go", `package pd; var o = prometheus.CounterOpts{Name: "tandem_requests_total"}`), ""},
	{"metric names", "by namespace", file("pd/a.go", `package pd; var o = prometheus.GaugeOpts{Namespace: "tandem", Name: "inflight"}`), ""},
	{"metric names", "foreign", file("pd/a.go", `package pd; var o = prometheus.HistogramOpts{Name: "ttft_seconds"}`), `pd/a.go declares the metric "ttft_seconds"`},
	{"metric names", "described", file("pd/a.go", `package pd; var d = prometheus.NewDesc("ttft", "", nil, nil)`), `pd/a.go declares the metric "ttft"`},
	{"metric names", "hidden in a variable", file("pd/a.go", `package pd; var o = prometheus.GaugeOpts{Name: name}`), `pd/a.go declares the metric ""`},
	{"metric names", "the simulator's", file("sim/a.go", `package sim; var o = prometheus.GaugeOpts{Name: "vllm:num_requests_running"}`), ""},

	{"machine paths", "home", file("README.md", "cd /ro"+"ot/x"), "README.md:1 has"},
	{"machine paths", "in test data", file("pd/testdata/a.txt", "\n\"/ho"+"me/me/x\""), "pd/testdata/a.txt:2 has"},
	{"machine paths", "part of an address", file("a.md", "example.com/ro"+"ot/x and /v1/models"), ""},

	{"binaries", "built", file("bin", "\x7fELF\x00"), "bin is binary"},
	{"binaries", "test data", file("pd/testdata/a.bin", "\x00"), ""},

	{"direct modules", "true", made{files: map[string]string{"pd/a.go": imports("pd", "go.uber.org/goleak")}, modules: map[string]bool{"go.uber.org/goleak": true, "go.uber.org/x": false}}, ""},
	{"direct modules", "another module of ours", made{files: map[string]string{"e2e/kube/go.mod": "module x\n", "e2e/kube/a.go": imports("kube", "go.uber.org/goleak")}, modules: map[string]bool{"go.uber.org/goleak": false}}, ""},
	{"direct modules", "listed as indirect", made{files: map[string]string{"pd/a.go": imports("pd", "go.uber.org/goleak/internal")}, modules: map[string]bool{"go.uber.org/goleak": false}}, "go.mod: go.uber.org/goleak is imported: true"},
	{"direct modules", "not used", made{modules: map[string]bool{"go.uber.org/goleak": true}}, "go.mod: go.uber.org/goleak is imported: false"},
	{"direct modules", "the longer path provides", made{files: map[string]string{"pd/a.go": imports("pd", "x.org/a/b/c")}, modules: map[string]bool{"x.org/a": false, "x.org/a/b": true}}, ""},

	{"package map", "true", made{files: map[string]string{mapPage: "| `pd` | words |\n", "pd/a.go": "package pd"}}, ""},
	{"package map", "promises", file(mapPage, "| `epp` | words |\n"), mapPage + " shows epp"},
	{"package map", "forgets", file("pd/a.go", "package pd"), mapPage + " does not show pd"},
}

func TestRulesOnMadeUpHouses(t *testing.T) {
	proven := map[string]bool{}
	for _, tt := range madeUp {
		t.Run(tt.rule+"/"+tt.name, func(t *testing.T) {
			i := slices.IndexFunc(rules, func(r rule) bool { return r.name == tt.rule })
			if i < 0 {
				t.Fatalf("there is no rule %q", tt.rule)
			}
			got := rules[i].check(tt.given.house(t))
			switch {
			case tt.breach == "" && len(got) > 0:
				t.Errorf("caught %q, want nothing", got)
			case tt.breach != "" && (len(got) != 1 || !strings.HasPrefix(got[0], tt.breach)):
				t.Errorf("caught %q, want one that begins with %q", got, tt.breach)
			}
		})
		proven[tt.rule] = proven[tt.rule] || tt.breach != ""
	}
	for _, r := range rules {
		if !proven[r.name] {
			t.Errorf("no made-up house breaks the rule %q", r.name)
		}
	}
}

// The bound of direct modules needs more of them than fit into the table.
func TestTooManyModules(t *testing.T) {
	modules, paths := map[string]bool{}, []string{}
	for i := range maxModules {
		m := fmt.Sprintf("x.org/m%d", i)
		modules[m], paths = true, append(paths, m)
	}
	h := made{files: map[string]string{"pd/a.go": imports("pd", paths...)}, modules: modules}.house(t)
	if got := checkModules(h); len(got) != 1 || !strings.Contains(got[0], fmt.Sprintf("%d direct dependencies", maxModules)) {
		t.Errorf("caught %q, want the bound", got)
	}
}
