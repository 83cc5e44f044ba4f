package tandem_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/tandem-serving/tandem"

// house is what the rules look at.
type house struct {
	files   map[string][]byte   // every file that git has or would add, by slash path
	sources []source            // the Go files of our modules among them, outside testdata
	links   map[string][]string // import paths that a command links, by its folder
	modules map[string]bool     // modules of go.mod: true if required directly
}

// source is one Go file.
type source struct {
	path    string
	dir     string
	test    bool
	imports []string
	syntax  *ast.File
}

// moduleDir returns the folder of the module that a file belongs to.
func (h house) moduleDir(file string) string {
	dir := path.Dir(file)
	for ; dir != "."; dir = path.Dir(dir) {
		if _, ok := h.files[dir+"/go.mod"]; ok {
			break
		}
	}
	return dir
}

// ours reports whether the rules for Go files hold for a module: for this one, and for those below it that use it. The others
// only build programs of other projects.
func (h house) ours(moduleDir string) bool {
	return moduleDir == "." || bytes.Contains(h.files[moduleDir+"/go.mod"], []byte("\nreplace "+module+" => "))
}

// rule is one house rule. check gives one line for each breach, beginning with
// the file or folder.
type rule struct {
	name   string
	reason string
	check  func(h house) []string
}

// rules is the one list of house rules. Each is proven on made-up input by
// TestRulesOnMadeUpHouses, because the repository breaks none of them.
var rules = []rule{
	{"imports", "packages stay separable only if dependencies point one way", checkImports},
	{"only importers", "a large foreign API is used in one package", checkOnlyImporters},
	{"links", "what a production binary links is what it can do wrong", checkLinks},
	{"doc.go", "a package says what it is for", checkDocs},
	{"depth", "packages deeper than three folders are not found", checkDepth},
	{"sleep", "a test that sleeps is slow, flaky, or both", checkSleep},
	{"wall clock", "a step of the machine's clock must not reach what requests depend on", checkWallClock},
	{"init", "what happens at start is written in main", checkInit},
	{"words", "a reader who opens one file understands plain terms; docs/glossary.md has them", checkWords},
	{"flags", "a flag that nothing reads promises what does not happen", checkFlags},
	{"leftovers", "what is not done is an issue, not a comment", checkLeftovers},
	{"metric names", "users find our metrics by one prefix", checkMetricNames},
	{"machine paths", "the repository works on every machine", checkMachinePaths},
	{"binaries", "what is built is not kept, and cannot be reviewed", checkBinaries},
	{"direct modules", "go.mod tells truly what we chose, and it stays under 32", checkModules},
	{"package map", "the map shows the packages that there are", checkMap},
}

func TestHouseRules(t *testing.T) {
	if _, err := os.Stat(".git"); err != nil && os.Getenv("CI") != "true" {
		t.Skip("not a git checkout: the rules are about the files that git has")
	}
	h := readHouse(t)
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, breach := range slices.Sorted(slices.Values(r.check(h))) {
				t.Errorf("%s (rule %q: %s)", breach, r.name, r.reason)
			}
		})
	}
}

// importRule says which packages of this module the files of a folder may
// import besides their own; "…" ends a path that stands for everything below it.
type importRule struct {
	dir     string
	may     []string
	inTests []string // what tests may import as well
}

var anything = []string{"…"}

// importRules: the first row that fits a file counts. A folder without a row may
// import everything but commands, which only commands import.
var importRules = []importRule{
	{"pd…", []string{"pd…"}, nil},
	{"transfer…", []string{"transfer…"}, []string{"sim/transport"}},
	{"sidecar/transport", []string{"pd…"}, nil},
	{"sidecar/warmup", []string{"sidecar/transport", "pd…"}, nil},
	{"sidecar/relay", []string{"sidecar/transport", "pd…"}, nil},
	{"sidecar/podwatch", nil, []string{"e2e/controlplane"}},
	{"sidecar/intake", []string{"sidecar/transport", "pd…"}, nil},
	{"sidecar/passthrough", []string{"sidecar/intake", "sidecar/transport", "pd…"}, nil},
	{"sidecar/lease", []string{"pd…", "transfer…"}, anything},
	{"sidecar/merge", []string{"pd…"}, nil},
	{"sidecar/continuation", []string{"pd…"}, nil},
	{"sidecar/handoff", []string{"sidecar/continuation", "sidecar/intake", "sidecar/lease", "sidecar/merge", "sidecar/relay", "sidecar/transport", "pd…", "transfer"}, anything},
	{"sidecar…", []string{"sidecar…", "pd…", "transfer…"}, anything},
	{"epp", []string{"pd…", "transfer"}, anything},
	{"epp/extproc", []string{"epp", "epp/extproc/client", "epp/flow", "epp/read", "epp/sched", "pd…"}, anything},
	{"epp/plugin…", []string{"epp", "epp/flow", "epp/headroom", "epp/kvfeed", "epp/kvhash", "epp/latency", "epp/plugin…", "epp/prefix", "epp/pool", "epp/pool/page", "epp/scale", "epp/tokens", "epp/tokens/chat", "pd…", "transfer"}, anything},
	{"epp/pool", []string{"epp", "epp/pool/page", "pd…"}, anything},
	{"epp/kvindex", nil, nil},
	{"epp/kvhash", nil, nil},
	{"epp/tokens", []string{"epp/tokens/chars", "epp/tokens/pattern"}, nil},
	{"epp/tokens/chat", []string{"epp/tokens/jinja"}, nil},
	{"epp/tokens/jinja", nil, nil},
	{"epp/tokens/pattern", []string{"epp/tokens/chars"}, nil},
	{"epp/tokens/chars", nil, nil},
	{"epp/kvevents", []string{"epp/kvhash", "epp/kvindex", "transfer/zmtp"}, anything},
	{"epp/kvfeed", []string{"epp", "epp/kvevents", "epp/kvhash", "epp/kvindex", "epp/prefix", "pd…", "transfer…"}, anything},
	{"epp/config", []string{"epp", "epp/flow", "pd…", "transfer"}, anything},
	{"epp/scale", []string{"epp", "epp/latency", "pd…"}, anything},
	{"epp/scale/external", []string{"epp/scale"}, nil},
	{"epp/scale/keda", []string{"epp/scale"}, nil},
	{"epp/scale/leaving", []string{"epp/scale", "pd…"}, nil},
	{"epp/shadow", []string{"epp", "epp/latency", "epp/sched", "pd…"}, anything},
	{"epp/replica", []string{"epp"}, anything},
	{"epp/setup", []string{"epp", "epp/config", "epp/flow", "epp/sched", "pd…"}, anything},
	{"epp…", []string{"epp", "pd…", "transfer"}, anything},
	{"replay/engine", nil, nil},
	{"replay/autoscale", []string{"replay"}, nil},
	{"replay", []string{"replay/engine", "epp…", "pd…"}, nil},
	{"batch", []string{"pd…"}, nil},
	{"batch/blob", []string{"batch"}, []string{"e2e/s3"}},
	{"batch/store", []string{"batch"}, []string{"e2e/postgres"}},
	{"batch/api", []string{"batch", "batch/store", "pd…"}, []string{"batch/blob"}},
	{"batch/upstream", []string{"batch", "pd…"}, nil},
	{"batch/queue", []string{"batch", "batch/upstream", "pd…"}, []string{"e2e/broker"}},
	{"batch/webhook", []string{"batch", "batch/store"}, nil},
	{"batch/worker", []string{"batch", "batch/store", "batch/upstream", "pd…"}, []string{"batch/blob"}},
	{"cmd/batch", []string{"cmd/internal…", "batch…", "pd…"}, anything},
	{"cmd/sim", []string{"cmd/internal…", "pd…", "transfer…", "sim…"}, anything},
	{"sim/transport", []string{"transfer"}, []string{"transfer/transfertest"}},
	{"sim/model", nil, nil},
	{"sim/metrics", nil, nil},
	{"sim/pyjson", nil, nil},
	{"sim/fault", []string{"sim/pyjson"}, nil},
	{"sim/kv", []string{"sim/model", "transfer"}, nil},
	{"sim/core", []string{"sim/kv", "sim/model", "transfer"}, nil},
	{"sim", []string{"sim/core", "sim/kv", "sim/metrics", "sim/model", "sim/pyjson", "sim/transport", "pd…", "transfer…"}, anything},
	{"sim/web", []string{"sim/fault", "sim/model", "sim/pyjson"}, nil},
	{"sim/sglang", []string{"sim/core", "sim/kv", "sim/metrics", "sim/model", "sim/pyjson", "sim/transport", "transfer…"}, anything},
	{"sim/sglang/api", []string{"sim/core", "sim/fault", "sim/model", "sim/pyjson", "sim/sglang", "sim/web"}, anything},
	{"sim/trtllm", []string{"sim/core", "sim/kv", "sim/metrics", "sim/model", "sim/transport", "transfer…"}, anything},
	{"sim/trtllm/api", []string{"sim/core", "sim/fault", "sim/pyjson", "sim/trtllm", "sim/web"}, anything},
	{"sim/api", []string{"sim", "sim/fault", "sim/metrics", "sim/model", "sim/pyjson", "sim/web"}, anything},
	{"sim…", []string{"sim…", "pd…", "transfer…"}, anything},
	{"cmd/tandem…", anything, nil},
	{"cmd/epp", []string{"cmd/internal…", "epp…", "pd…", "transfer…"}, anything},
	{"cmd/sidecar", []string{"cmd/internal…", "sidecar…", "pd…", "transfer…"}, anything},
	{"cmd/keeper", []string{"cmd/internal…", "transfer…", "sim/transport"}, anything},
	{"cmd/internal…", []string{"cmd/internal…"}, anything},
}

// fits reports whether a folder is meant by a pattern of importRules.
func fits(dir, pattern string) bool {
	prefix, all := strings.CutSuffix(pattern, "…")
	if !all {
		return dir == pattern
	}
	return prefix == "" || dir == prefix || strings.HasPrefix(dir, prefix+"/")
}

func fitsAny(dir string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return fits(dir, p) })
}

func checkImports(h house) (breaches []string) {
	for _, s := range h.sources {
		for _, imported := range s.imports {
			to, ours := strings.CutPrefix(imported, module+"/")
			if !ours || to == s.dir || importAllowed(s, to) {
				continue
			}
			breaches = append(breaches, fmt.Sprintf("%s imports %s", s.path, to))
		}
	}
	return breaches
}

func importAllowed(s source, to string) bool {
	switch {
	case fits(to, "cmd…") && !fits(s.dir, "cmd…"):
		return false
	case fits(to, "e2e…") && !fits(s.dir, "e2e…") && !s.test:
		return false
	case fits(to, "e2e/kube…") && !fits(s.dir, "e2e/kube…"):
		return false // a module that uses this one
	case fits(s.dir, "epp…") && fits(to, "sidecar…"), fits(s.dir, "sidecar…") && fits(to, "epp…"):
		return false // not even in tests
	}
	for _, row := range importRules {
		if fits(s.dir, row.dir) {
			return fitsAny(to, row.may) || s.test && fitsAny(to, row.inTests)
		}
	}
	return true
}

// onlyImporters are the packages that may import a foreign one, and everything below it.
var onlyImporters = []struct {
	imported string
	by       []string
}{
	{"github.com/envoyproxy/go-control-plane", []string{"epp/extproc", "epp/extproc/client", "epp/extproc/envoyconf"}},
	{"sigs.k8s.io/controller-runtime", []string{"epp/kube"}},
	{"modernc.org/sqlite", []string{"batch/store"}},
	{"C", []string{"transfer/nixl"}},
}

func checkOnlyImporters(h house) (breaches []string) {
	for _, s := range h.sources {
		for _, row := range onlyImporters {
			matches := func(imported string) bool { return fits(imported, row.imported+"…") }
			if slices.ContainsFunc(s.imports, matches) && !slices.Contains(row.by, s.dir) {
				breaches = append(breaches, fmt.Sprintf("%s imports %s, which only %v may", s.path, row.imported, row.by))
			}
		}
	}
	return breaches
}

// unlinked is what a command must not link, however indirectly, as production
// builds it: the keeper with the tag nixl. The sidecar runs in every engine pod,
// where a Kubernetes client would be most of it; and a process that opens NIXL's
// library may crash, which is why the keeper is a process of its own.
var unlinked = map[string][]string{
	"cmd/batch":   {module + "/e2e…", module + "/sim…", module + "/stack…", module + "/epp…", module + "/sidecar…", module + "/transfer…", "k8s.io…", "sigs.k8s.io…"},
	"cmd/epp":     {module + "/e2e…", module + "/sim…", module + "/stack…", module + "/sidecar…", module + "/transfer/nixl…"},
	"cmd/keeper":  {module + "/e2e…", module + "/sim…", module + "/stack…", module + "/epp…", module + "/sidecar…", module + "/pd…", "k8s.io…", "sigs.k8s.io…"},
	"cmd/sidecar": {module + "/e2e…", module + "/sim…", module + "/stack…", module + "/epp…", module + "/transfer/nixl…", "k8s.io…", "sigs.k8s.io…"},
}

// productionTags are the build tags of a command in production.
var productionTags = map[string]string{"cmd/keeper": "nixl"}

func checkLinks(h house) (breaches []string) {
	for command, packages := range h.links {
		for _, p := range packages {
			if fitsAny(p, unlinked[command]) {
				breaches = append(breaches, fmt.Sprintf("%s links %s", command, p))
			}
		}
	}
	return breaches
}

func checkDocs(h house) (breaches []string) {
	documented, packages := map[string]bool{}, map[string]bool{}
	for _, s := range h.sources {
		if !s.test && s.syntax.Name.Name != "main" {
			packages[s.dir] = true
		}
		if path.Base(s.path) == "doc.go" && s.syntax.Doc != nil {
			documented[s.dir] = true
		}
	}
	for dir := range packages {
		if !documented[dir] {
			breaches = append(breaches, dir+" has no doc.go with a package comment")
		}
	}
	return breaches
}

func checkDepth(h house) (breaches []string) {
	for file := range h.files {
		dir, _, _ := strings.Cut(path.Dir(file)+"/", "/testdata/")
		if strings.Count(strings.TrimSuffix(dir, "/"), "/") >= 3 {
			breaches = append(breaches, file+" lies deeper than three folders")
		}
	}
	return breaches
}

// checkSleep allows sleeping on the fake clock of a synctest bubble, which
// takes no time and is exact.
func checkSleep(h house) (breaches []string) {
	for _, s := range h.sources {
		if !s.test {
			continue
		}
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if ok && isSelector(call.Fun, "synctest", "Test") {
				return false
			}
			if ok && isSelector(call.Fun, "time", "Sleep") {
				breaches = append(breaches, s.path+" calls time.Sleep")
			}
			return true
		})
	}
	return breaches
}

func isSelector(e ast.Expr, pkg, name string) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == pkg
}

// online are the folders whose code serves requests.
var online = []string{"pd…", "epp…", "sidecar…", "transfer…", "cmd/epp", "cmd/sidecar", "cmd/keeper", "cmd/internal…"}

// onWallClock are the files of these folders that may read the wall clock as a number.
var onWallClock = map[string]string{
	"cmd/internal/boot/follow.go": "times of files are compared for equality",
	"epp/headroom/window.go":      "a step costs it the samples of ten seconds",
	"epp/kvfeed/feed.go":          "messages of engines have the time of the engine's clock, which only a metric shows",
	"epp/scale/pattern.go":        "the time of day is what it learns; a step costs it the days that have not come",
}

// checkWallClock finds times that lose their monotonic reading.
func checkWallClock(h house) (breaches []string) {
	for _, s := range h.sources {
		if s.test || !fitsAny(s.dir, online) || onWallClock[s.path] != "" {
			continue
		}
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) > 0 {
				return true
			}
			if method, ok := call.Fun.(*ast.SelectorExpr); ok && strings.HasPrefix(method.Sel.Name, "Unix") {
				breaches = append(breaches, s.path+" calls "+method.Sel.Name+" of a time")
			}
			return true
		})
	}
	return breaches
}

func checkInit(h house) (breaches []string) {
	for _, s := range h.sources {
		for _, d := range s.syntax.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				breaches = append(breaches, s.path+" declares init()")
			}
		}
	}
	return breaches
}

// leftover is put together so that this file does not match itself.
var leftover = pattern{regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`), []string{"to" + "do", "fix" + "me", "xx" + "x"}}

func checkLeftovers(h house) (breaches []string) {
	return grep(h, leftover, func(file string) bool { return !inTestdata(file) })
}

// machinePath matches a path that exists on one machine only.
var machinePath = pattern{regexp.MustCompile(`(^|[^\w.-])/(` + `work|root|home|Users)/|\.\./` + `shared\b`),
	[]string{"/" + "work/", "/" + "root/", "/" + "home/", "/" + "users/", "../" + "shared"}}

func checkMachinePaths(h house) (breaches []string) {
	return grep(h, machinePath, func(string) bool { return true })
}

// pattern matches lines. Each match contains one of the literals, which are in lower case, in any case: looking for them first
// takes a hundredth of the time that the expression takes.
type pattern struct {
	*regexp.Regexp
	literals []string
}

// mayMatch reports whether a file has one of the literals.
func (p pattern) mayMatch(data []byte) bool {
	data = bytes.ToLower(data)
	return slices.ContainsFunc(p.literals, func(literal string) bool { return bytes.Contains(data, []byte(literal)) })
}

// grep returns file:line for each line that matches in the text files wanted.
func grep(h house, re pattern, want func(file string) bool) (breaches []string) {
	for file, data := range h.files {
		if !want(file) || isBinary(data) || !re.mayMatch(data) {
			continue
		}
		for i, line := range bytes.Split(data, []byte("\n")) {
			if re.Match(line) {
				breaches = append(breaches, fmt.Sprintf("%s:%d has %q", file, i+1, bytes.TrimSpace(line)))
			}
		}
	}
	return breaches
}

func inTestdata(file string) bool { return strings.Contains("/"+file, "/testdata/") }

// isBinary is git's own test.
func isBinary(data []byte) bool { return bytes.IndexByte(data[:min(len(data), 8000)], 0) >= 0 }

func checkBinaries(h house) (breaches []string) {
	for file, data := range h.files {
		if isBinary(data) && !inTestdata(file) {
			breaches = append(breaches, file+" is binary")
		}
	}
	return breaches
}

// llmdMetrics are the metrics that have llm-d's names beside ours, because autoscalers
// and dashboards are configured with them.
var llmdMetrics = []string{
	"llm_d_epp_flow_control_capacity_utilization_bytes", "llm_d_epp_flow_control_capacity_utilization_requests",
	"llm_d_epp_flow_control_global_capacity_utilization_bytes", "llm_d_epp_flow_control_global_capacity_utilization_requests",
	"llm_d_epp_flow_control_pool_saturation", "llm_d_epp_flow_control_queue_bytes", "llm_d_epp_flow_control_queue_size",
	"llm_d_epp_flow_control_requests_total", "llm_d_epp_request_running",
	"inferno_current_replicas", "inferno_desired_replicas", "wva_current_replicas", "wva_desired_replicas",
}

// checkMetricNames leaves out tests, and the simulated engine, whose metrics
// have the names of the real one.
func checkMetricNames(h house) (breaches []string) {
	for _, s := range h.sources {
		if s.test || s.dir == "sim" {
			continue
		}
		for _, name := range metricNames(s.syntax) {
			if !strings.HasPrefix(name, "tandem_") && !slices.Contains(llmdMetrics, name) {
				breaches = append(breaches, fmt.Sprintf("%s declares the metric %q", s.path, name))
			}
		}
	}
	return breaches
}

// metricNames returns the literal names in prometheus.…Opts{} and
// prometheus.NewDesc(), with an empty one where the name is not a literal.
func metricNames(file *ast.File) (names []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			sel, ok := n.Type.(*ast.SelectorExpr)
			if ok && strings.HasSuffix(sel.Sel.Name, "Opts") && isSelector(sel, "prometheus", sel.Sel.Name) {
				names = append(names, optsName(n)...)
			}
		case *ast.CallExpr:
			if isSelector(n.Fun, "prometheus", "NewDesc") && len(n.Args) > 0 {
				names = append(names, literal(n.Args[0]))
			}
		}
		return true
	})
	return names
}

func optsName(opts *ast.CompositeLit) []string {
	fields := map[string]string{}
	for _, e := range opts.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.Ident); ok {
				fields[key.Name] = literal(kv.Value)
			}
		}
	}
	name, ok := fields["Name"]
	if !ok {
		return nil // options of something else, such as ProcessCollectorOpts
	}
	for _, prefix := range []string{fields["Subsystem"], fields["Namespace"]} {
		if prefix != "" {
			name = prefix + "_" + name
		}
	}
	return []string{name}
}

func literal(e ast.Expr) string {
	if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		s, _ := strconv.Unquote(lit.Value)
		return s
	}
	return ""
}

// maxModules is the bound of direct dependencies. The last nine are those of batch: modernc.org/sqlite, since a build without C, as ours is,
// leaves no other; pgx, the driver of PostgreSQL; Go CDK, for buckets, and for the credentials of clouds; and go-redis, nats.go, franz-go, SQS of
// aws-sdk-go-v2, and the messages of Pub/Sub, for queues, where kmsg, the messages of Kafka's protocol, is a module of its own. Only the batch server links them.
const maxModules = 34

func checkModules(h house) (breaches []string) {
	used := map[string]bool{}
	for _, s := range h.sources {
		if h.moduleDir(s.path) != "." {
			continue // its own go.mod says what it uses
		}
		for _, imported := range s.imports {
			if m := moduleOf(h, imported); m != "" {
				used[m] = true
			}
		}
	}
	direct := 0
	for m, listed := range h.modules {
		if listed {
			direct++
		}
		if listed != used[m] {
			breaches = append(breaches, fmt.Sprintf("go.mod: %s is imported: %t, listed as direct: %t (run go mod tidy)", m, used[m], listed))
		}
	}
	if direct >= maxModules {
		breaches = append(breaches, fmt.Sprintf("go.mod: %d direct dependencies, want fewer than %d", direct, maxModules))
	}
	return breaches
}

// moduleOf returns the module of go.mod that provides a package: the longest
// path that fits.
func moduleOf(h house, imported string) (longest string) {
	for m := range h.modules {
		if fits(imported, m+"…") && len(m) > len(longest) {
			longest = m
		}
	}
	return longest
}

// mapPage is the page with the table of packages.
const mapPage = "docs/architecture.md"

// mapRow is a row of that table: | `folder` | … |
var mapRow = regexp.MustCompile("(?m)^\\| `([a-z0-9/]+)` \\|")

func checkMap(h house) (breaches []string) {
	packages := map[string]bool{}
	for _, s := range h.sources {
		if !s.test && s.dir != "." {
			packages[s.dir] = true
		}
	}
	for _, row := range mapRow.FindAllSubmatch(h.files[mapPage], -1) {
		if dir := string(row[1]); !packages[dir] {
			breaches = append(breaches, mapPage+" shows "+dir+", which has no Go files")
		} else {
			packages[dir] = false
		}
	}
	for dir, missing := range packages {
		if missing {
			breaches = append(breaches, mapPage+" does not show "+dir)
		}
	}
	return breaches
}

// readHouse reads the repository this test lies in.
func readHouse(t *testing.T) house {
	t.Helper()
	h := house{files: map[string][]byte{}, links: map[string][]string{}, modules: map[string]bool{}}
	for _, file := range strings.Split(output(t, "git", "ls-files", "-co", "--exclude-standard", "-z"), "\x00") {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // the empty end of the list, or deleted and not yet committed
		}
		h.files[file] = data
	}
	for file, data := range h.files {
		if strings.HasSuffix(file, ".go") && !inTestdata(file) && h.ours(h.moduleDir(file)) {
			h.sources = append(h.sources, parse(t, file, data))
		}
	}
	for command := range unlinked {
		if _, err := os.Stat(command); err == nil {
			h.links[command] = strings.Fields(output(t, "go", "list", "-deps", "-tags="+productionTags[command], "./"+command))
		}
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal([]byte(output(t, "go", "mod", "edit", "-json")), &mod); err != nil {
		t.Fatal(err)
	}
	for _, m := range mod.Require {
		h.modules[m.Path] = !m.Indirect
	}
	if len(h.sources) == 0 || len(h.modules) == 0 {
		t.Fatal("the house seems empty: the rules would hold for nothing")
	}
	return h
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("running %v: %v\n%s", cmd, err, stderr.Bytes())
	}
	return string(out)
}

func parse(t *testing.T, file string, data []byte) source {
	t.Helper()
	syntax, err := parser.ParseFile(token.NewFileSet(), file, data, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	s := source{path: file, dir: path.Dir(file), test: strings.HasSuffix(file, "_test.go"), syntax: syntax}
	for _, spec := range syntax.Imports {
		s.imports = append(s.imports, literal(spec.Path))
	}
	return s
}
