package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
	"github.com/tandem-serving/tandem/pd"
)

// shipped are the folders whose code runs in production, or in a user's hands.
var shipped = []string{"batch", "pd", "epp", "sidecar", "transfer", "cmd"}

// sources are the Go files of the shipped folders, without tests.
var sources = sync.OnceValues(func() (files []*ast.File, err error) {
	for _, folder := range shipped {
		err = filepath.WalkDir(filepath.Join(root, folder), func(file string, e fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || strings.Contains(file, "testdata") {
				return err
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			files = append(files, parsed)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
})

// inspect calls visit for each node of all sources.
func inspect(t *testing.T, visit func(ast.Node)) {
	t.Helper()
	files, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool { visit(n); return true })
	}
}

// currentPages returns the pages without the changelog, which names things that are no more.
func currentPages(t *testing.T) []page {
	t.Helper()
	return slices.DeleteFunc(pages(t), func(p page) bool { return p.name == "CHANGELOG.md" })
}

// introduces reports whether a page shows code that declares a name.
func (p page) introduces(name string) bool {
	return slices.ContainsFunc(p.codes, func(c code) bool { return c.language == "go" && strings.Contains(c.text, `"`+name+`"`) })
}

// text returns the value of a string literal, "" for anything else.
func text(e ast.Expr) string {
	if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		value, _ := strconv.Unquote(lit.Value)
		return value
	}
	return ""
}

// metric is a metric as the source declares it.
type metric struct {
	kind   string
	labels []string
}

// declaredMetrics reads the declarations of metrics: calls such as NewCounterVec(CounterOpts{Name: …}, []string{…}), options
// in a variable, and NewDesc. The same name may be declared by several components.
func declaredMetrics(t *testing.T) map[string]metric {
	t.Helper()
	declared := map[string]metric{}
	inspect(t, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.CompositeLit: // options, wherever they stand
			if name, labels := metricOptions(n); name != "" {
				m := declared[name]
				m.kind, m.labels = optionsKind(n), union(m.labels, labels)
				declared[name] = m
			}
		case *ast.CallExpr:
			name, labels := "", []string(nil)
			for _, arg := range n.Args {
				switch arg := arg.(type) {
				case *ast.CompositeLit:
					if found, _ := metricOptions(arg); found != "" {
						name = found
					} else {
						labels = union(labels, labelsOf(arg))
					}
				case *ast.BasicLit:
					if metricName(text(arg)) && calls(n, "NewDesc") {
						name = text(arg)
					}
				}
			}
			if name != "" {
				m := declared[name]
				m.labels = union(m.labels, labels)
				declared[name] = m
			}
		}
	})
	if len(declared) < 30 {
		t.Fatalf("only %d metrics were found in the source", len(declared))
	}
	return declared
}

// metricName reports whether a literal is the name of one of our metrics. Some have llm-d's names: the house rule "metric names" lists
// them.
func metricName(literal string) bool {
	for _, prefix := range []string{"tandem_", "llm_d_epp_", "wva_", "inferno_"} {
		if strings.HasPrefix(literal, prefix) {
			return true
		}
	}
	return false
}

func calls(call *ast.CallExpr, name string) bool {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	return ok && selector.Sel.Name == name
}

// optionsKind is counter, gauge or histogram, by the type of options.
func optionsKind(options *ast.CompositeLit) string {
	if selector, ok := options.Type.(*ast.SelectorExpr); ok {
		return strings.ToLower(strings.TrimSuffix(selector.Sel.Name, "Opts"))
	}
	return ""
}

// metricOptions reads the name and the constant labels of options of a metric.
func metricOptions(options *ast.CompositeLit) (name string, labels []string) {
	for _, element := range options.Elts {
		pair, ok := element.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		key, ok := pair.Key.(*ast.Ident)
		if ok && key.Name == "Name" && metricName(text(pair.Value)) {
			name = text(pair.Value)
		}
		if constant, isLiteral := pair.Value.(*ast.CompositeLit); ok && isLiteral && key.Name == "ConstLabels" {
			labels = labelsOf(constant)
		}
	}
	return name, labels
}

// labelsOf reads []string{"a", "b"} and prometheus.Labels{"a": …}.
func labelsOf(list *ast.CompositeLit) (labels []string) {
	for _, element := range list.Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok {
			element = pair.Key
		}
		if label := text(element); label != "" {
			labels = append(labels, label)
		}
	}
	return labels
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// TestMetrics holds docs/metrics.md to the metrics that the programs declare, both ways, and every other page to names that
// exist.
func TestMetrics(t *testing.T) {
	declared := declaredMetrics(t)
	shown := map[string]bool{}
	p := pageNamed(t, "docs/metrics.md")
	for _, row := range tableRows(p.text) {
		name := strings.Trim(row[0], "`")
		m, ok := declared[name]
		if !ok {
			t.Errorf("docs/metrics.md shows %s, which no program declares", name)
			continue
		}
		shown[name] = true
		if m.kind != "" && m.kind != row[1] {
			t.Errorf("docs/metrics.md calls %s a %s, and it is a %s", name, row[1], m.kind)
		}
		for _, label := range codesIn(row[2]) {
			if len(m.labels) > 0 && !slices.Contains(m.labels, label) {
				t.Errorf("docs/metrics.md gives %s the label %s, which is not among %q", name, label, m.labels)
			}
		}
		for _, label := range m.labels {
			if name != "tandem_lease_connects_total" && name != "tandem_lease_heartbeats_total" && !slices.Contains(codesIn(row[2]), label) {
				t.Errorf("docs/metrics.md does not give %s its label %s", name, label)
			}
		}
	}
	for name := range declared {
		if !shown[name] {
			t.Errorf("docs/metrics.md does not show %s", name)
		}
	}
	for _, p := range currentPages(t) {
		for _, name := range regexp.MustCompile(`\b(tandem|llm_d_epp)_[a-z_]+[a-z]\b`).FindAllString(p.text, -1) {
			base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count"), "_sum")
			if _, ok := declared[base]; !ok && !p.introduces(name) {
				t.Errorf("%s names the metric %s, which no program declares", p.name, name)
			}
		}
	}
}

// literals returns the string literals of all sources.
func literals(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	inspect(t, func(n ast.Node) {
		if lit, ok := n.(*ast.BasicLit); ok {
			all[text(lit)] = true
		}
	})
	return all
}

// TestAttributes holds docs/traces.md to the span attributes of the source, both ways.
func TestAttributes(t *testing.T) {
	known, page := literals(t), pageNamed(t, "docs/traces.md")
	name := regexp.MustCompile(`^tandem\.[a-z_.]+[a-z]$`)
	shown := map[string]bool{}
	for _, attribute := range codesIn(page.section(t, "Attributes")) {
		shown[attribute] = true
		prefix := attribute[:strings.LastIndexByte(attribute, '.')+1] // the rest may be put together from a phase or a count
		if name.MatchString(attribute) && !known[attribute] && !(known[prefix] && (prefix == "tandem.phase." || prefix == "tandem.tokens.")) {
			t.Errorf("docs/traces.md shows the attribute %s, which is not in the source", attribute)
		}
	}
	for attribute := range known {
		if name.MatchString(attribute) && !shown[attribute] {
			t.Errorf("docs/traces.md does not show the attribute %s", attribute)
		}
	}
}

// TestHeaders holds docs/headers.md to the headers of package pd, and every page to header names that exist.
func TestHeaders(t *testing.T) {
	page := pageNamed(t, "docs/headers.md")
	known := literals(t)
	shown := map[string]bool{}
	for _, row := range tableRows(page.text) {
		shown[strings.Trim(row[0], "`")] = true
	}
	for _, header := range []string{pd.HeaderMode, pd.HeaderPrefill, pd.HeaderPlan, pd.HeaderAuth, pd.HeaderModel, pd.HeaderDecision,
		pd.HeaderTiming, pd.HeaderOutcome, pd.HeaderRetry, pd.HeaderRequestID, pd.HeaderDropped} {
		if !shown[header] {
			t.Errorf("docs/headers.md does not show %s", header)
		}
	}
	header := regexp.MustCompile(`^x-[a-z0-9-]+[a-z0-9]$`)
	for _, p := range currentPages(t) {
		for _, code := range p.inlineCodes() {
			if header.MatchString(code) && !known[code] && !strings.HasPrefix(code, "x-smg-") { // of SGLang's router
				t.Errorf("%s names the header %s, which is not in the source", p.name, code)
			}
		}
	}
}

// TestReasons holds the table of reasons to package pd, row by row, and the tables of refusals and of the glossary as well.
func TestReasons(t *testing.T) {
	type row struct {
		verdict pd.Verdict
		reason  pd.Reason
	}
	shown := map[row]bool{}
	words := map[string]pd.Verdict{"remote": pd.Remote, "local": pd.Local, "refused": pd.Refused}
	table := regexp.MustCompile("(?m)^\\| (remote|local|refused) \\| `([a-z-]+)` \\|")
	for _, found := range table.FindAllStringSubmatch(pageNamed(t, "docs/headers.md").text, -1) {
		r := row{words[found[1]], pd.Reason(found[2])}
		shown[r] = true
		if !r.reason.Explains(r.verdict) {
			t.Errorf("docs/headers.md: %s is no reason for %s", r.reason, r.verdict)
		}
	}
	glossary := pageNamed(t, "docs/glossary.md").text
	for _, verdict := range words {
		for _, reason := range pd.Reasons(verdict) {
			if !shown[row{verdict, reason}] {
				t.Errorf("docs/headers.md does not show %s as a reason for %s", reason, verdict)
			}
			if !strings.Contains(glossary, "\n| `"+string(reason)+"` | reason, ") {
				t.Errorf("docs/glossary.md does not explain the reason %s", reason)
			}
		}
	}
	for ph := range pd.Phase(pd.PhaseCount + 1) {
		if !strings.Contains(glossary, "\n| `"+ph.String()+"` | phase: ") {
			t.Errorf("docs/glossary.md does not explain the phase %s", ph)
		}
	}
}

// TestRefusals compares the statuses and the Retry-After that docs/failures.md shows.
func TestRefusals(t *testing.T) {
	shown := map[string][]string{}
	for _, row := range tableRows(pageNamed(t, "docs/failures.md").section(t, "What a refusal looks like")) {
		shown[strings.Trim(row[0], "`")] = row[1:]
	}
	for _, reason := range pd.Reasons(pd.Refused) {
		r := pd.Refuse(reason, "")
		if want := []string{strconv.Itoa(r.Status()), r.RetryAfter()}; !slices.Equal(shown[string(reason)], want) {
			t.Errorf("docs/failures.md shows %q for %s, and it is %q", shown[string(reason)], reason, want)
		}
	}
}

// TestPlugins finds names of plugins that neither this picker nor llm-d's has.
func TestPlugins(t *testing.T) {
	known := map[string]bool{}
	for _, row := range plugin.Table {
		known[row.Type] = true
		for _, old := range row.Deprecated {
			known[old] = true
		}
	}
	for _, other := range config.ForeignTypes() {
		known[other.Type] = true
	}
	name := regexp.MustCompile(`^[a-z]+(-[a-z]+)*-(scorer|filter|picker|detector|handler|decider|producer|discovery|extractor)$`)
	for _, p := range currentPages(t) {
		for _, code := range p.inlineCodes() {
			if name.MatchString(code) && !known[code] && !p.introduces(code) {
				t.Errorf("%s names the plugin %s, which does not exist", p.name, code)
			}
		}
	}
}

// foreignFlags are flags of other programs that pages name.
var foreignFlags = []string{"--api-key", "--block-size", "--chat-template", "--kv-transfer-config", "--mm-processor-cache-gb", "--no-enable-prefix-caching", "--prefix-caching-hash-algo", "--shutdown-timeout", "--flag", "--force-conflicts", "--ssl-certfile", "--ssl-keyfile",
	"--version", "--help", "--check", "--disaggregation-decode-enable-radix-cache", "--dp-size", "--data-parallel-multi-port-external-lb", "--disable-hybrid-kv-cache-manager", "--ack",
	// of engines on several nodes
	"--nnodes", "--node-rank", "--master-addr", "--headless", "--dist-init-addr", "--enable-expert-parallel", "--enable-dp-attention",
	// of SGLang's router
	"--pd-disaggregation", "--service-discovery", "--prefill-selector", "--decode-selector", "--policy", "--prefill-policy", "--decode-policy", "--retry-max-retries",
	"--cb-failure-threshold", "--max-concurrent-requests", "--queue-size", "--queue-timeout-secs", "--request-timeout-secs", "--dp-aware"}

// TestFlags finds flags in prose that no program of ours has.
func TestFlags(t *testing.T) {
	known := map[string]bool{}
	for _, flag := range foreignFlags {
		known[flag] = true
	}
	flag := regexp.MustCompile(`--[a-z][a-z0-9-]*[a-z0-9]`)
	for _, args := range [][]string{{"batch"}, {"epp"}, {"sidecar"}, {"keeper"}, {"sim"}, {"tandem", "up"}, {"tandem", "demo"}, {"tandem", "check"},
		{"tandem", "explain"}, {"tandem", "doctor"}, {"tandem", "drain"}, {"tandem", "envoy-config"}, {"tandem", "gateway"}, {"tandem", "batch"}, {"tandem", "bench"}, {"tandem", "load"}, {"tandem", "replay"}, {"tandem", "shadow"}, {"tandem", "why"}} {
		for _, found := range flag.FindAllString(run(t, "", program(t, args[0]), append(args[1:], "--help")...), -1) {
			known[found] = true
		}
	}
	for _, p := range currentPages(t) {
		for _, code := range p.inlineCodes() {
			found := flag.FindString(code)
			if strings.HasPrefix(code, "--") && found != "" && !known[found] {
				t.Errorf("%s names the flag %s, which no program has", p.name, found)
			}
		}
	}
}

// TestGoNames finds names of Go declarations in the pages that the source does not have.
func TestGoNames(t *testing.T) {
	files, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	for _, file := range files {
		for _, declaration := range file.Decls {
			switch d := declaration.(type) {
			case *ast.FuncDecl:
				declared[file.Name.Name+"."+d.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok {
						declared[file.Name.Name+"."+s.Name.Name] = true
					}
					if s, ok := spec.(*ast.ValueSpec); ok {
						for _, name := range s.Names {
							declared[file.Name.Name+"."+name.Name] = true
						}
					}
				}
			}
		}
	}
	goName := regexp.MustCompile(`^(pd|epp|request|dialect|plugin|body|transfer)\.[A-Z]\w*$`)
	for _, p := range currentPages(t) {
		for _, code := range p.inlineCodes() {
			if goName.MatchString(code) && !declared[code] {
				t.Errorf("%s names %s, which the source does not declare", p.name, code)
			}
		}
	}
}

// sourcePath finds paths of files and folders of the repository between backticks.
var sourcePath = regexp.MustCompile(`^(cmd|epp|pd|sidecar|transfer|sim|stack|e2e|charts|docs)(/[a-z0-9_.-]+)+$`)

// TestPaths finds paths in the pages that the repository does not have.
func TestPaths(t *testing.T) {
	for _, p := range currentPages(t) {
		for _, code := range p.inlineCodes() {
			if !sourcePath.MatchString(code) {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(code))); err != nil {
				t.Errorf("%s names %s, which does not exist", p.name, code)
			}
		}
	}
}
