package charts_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/tandem-serving/tandem/pd"
)

// dashboard is as much of Grafana's dashboard as there are rules for.
type dashboard struct {
	UID           string
	Title         string
	Tags          []string
	SchemaVersion int
	Templating    struct{ List []variable }
	Annotations   struct{ List []annotation }
	Panels        []panel
}

// annotation marks times in all panels of a dashboard.
type annotation struct {
	Name, Expr      string
	Enable          bool
	UseValueForTime bool
	Datasource      struct{ UID string }
}

type variable struct {
	Name, Type string
	Query      any // a string, or of a query variable an object
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Datasource               struct{ Type, UID string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct {
		RefID, Expr, LegendFormat, Format string
		Instant                           bool
	}
}

// query is a PromQL expression, and where it stands.
type query struct{ where, expr string }

// currentSchema is that of Grafana 12: older ones of supported versions read it as well.
const currentSchema = 41

func TestDashboards(t *testing.T) {
	uids := map[string]bool{}
	for file, d := range dashboards(t) {
		t.Run(file, func(t *testing.T) {
			if d.UID == "" || uids[d.UID] || !strings.HasPrefix(d.Title, "Tandem ") || !slices.Contains(d.Tags, "tandem") {
				t.Errorf("uid %q, title %q, tags %q: want a uid of its own, a title and a tag that are found", d.UID, d.Title, d.Tags)
			}
			uids[d.UID] = true
			if d.SchemaVersion != currentSchema {
				t.Errorf("schema %d, want %d", d.SchemaVersion, currentSchema)
			}
			var names []string
			for _, v := range d.Templating.List {
				names = append(names, v.Name)
			}
			if want := []string{"datasource", "namespace", "release"}; !slices.Equal(names, want) {
				t.Errorf("variables %q, want %q", names, want)
			}
			checkPanels(t, d.Panels)
			checkAnnotations(t, d.Annotations.List)
		})
	}
	if len(uids) < 8 {
		t.Errorf("%d dashboards", len(uids))
	}
}

func checkPanels(t *testing.T, panels []panel) {
	t.Helper()
	taken, ids, titles := map[[2]int]string{}, map[int]bool{}, map[string]bool{}
	for _, p := range panels {
		if ids[p.ID] || titles[p.Title] || p.Title == "" {
			t.Errorf("panel %d %q has no id or title of its own", p.ID, p.Title)
		}
		ids[p.ID], titles[p.Title] = true, true
		if p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("%s: description %q, unit %q, %d queries", p.Title, p.Description, p.FieldConfig.Defaults.Unit, len(p.Targets))
		}
		if p.Datasource.UID != "${datasource}" {
			t.Errorf("%s: data source %q is not the dashboard's variable", p.Title, p.Datasource.UID)
		}
		if p.GridPos.W <= 0 || p.GridPos.H <= 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%s is out of the grid: %+v", p.Title, p.GridPos)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other, full := taken[cell]; full {
					t.Fatalf("%s lies on %s", p.Title, other)
				}
				taken[cell] = p.Title
			}
		}
	}
}

// checkAnnotations holds that a dashboard marks when pods were started, as a rollout does, and when pickers read another
// configuration: what most incidents begin with.
func checkAnnotations(t *testing.T, list []annotation) {
	t.Helper()
	wanted := map[string]bool{"process_start_time_seconds": true, "tandem_config_reloads_total": false} // whether the value is the time
	for _, a := range list {
		metric := selectorsOf(a.Expr)[0].metric
		if byValue, known := wanted[metric]; !known || a.UseValueForTime != byValue || !a.Enable || a.Datasource.UID != "${datasource}" {
			t.Errorf("annotation %+v", a)
		}
		delete(wanted, metric)
	}
	if len(wanted) > 0 {
		t.Errorf("nothing marks %v", wanted)
	}
}

// TestPodsAreCompared holds the answer to "which pod is bad?": a table with a row for each pod, which needs all its queries to be
// by pod and role, and to ask for one moment.
func TestPodsAreCompared(t *testing.T) {
	var found bool
	for _, p := range dashboards(t)["pods.json"].Panels {
		if p.Title != "Which pod is bad?" {
			continue
		}
		found = true
		for _, target := range p.Targets {
			if !strings.Contains(target.Expr, "by (llm_d_ai_role, pod") || target.Format != "table" || !target.Instant {
				t.Errorf("%s is no column of one row for each pod: %+v", target.RefID, target)
			}
		}
		if p.Type != "table" || len(p.Targets) < 8 {
			t.Errorf("a %s of %d columns", p.Type, len(p.Targets))
		}
	}
	if !found {
		t.Error("there is no such panel")
	}
}

// TestMetricsAreDocumented holds that docs/metrics.md has every metric that dashboards and alerts ask for: those of our
// programs, those of engines, and what the chart's rules record.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range regexp.MustCompile("`((?:tandem|vllm)[a-z0-9_:]+|process_[a-z_]+)`").FindAllStringSubmatch(string(text), -1) {
		for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
			known[m[1]+suffix] = true
		}
	}
	asked := 0
	for _, q := range slices.Concat(panelQueries(t), annotationQueries(t), alertQueries(t)) {
		for _, s := range selectorsOf(q.expr) {
			asked++
			if !known[s.metric] {
				t.Errorf("%s asks for %s, which docs/metrics.md does not have", q.where, s.metric)
			}
		}
	}
	if asked < 100 {
		t.Errorf("only %d selectors were found", asked)
	}
}

// TestQueriesAreOfOneRelease keeps queries from adding up releases, and from guessing the role of a pod by its name.
func TestQueriesAreOfOneRelease(t *testing.T) {
	named := regexp.MustCompile(`(^|,)(pod|instance|job)(=|!)`)
	for _, q := range slices.Concat(panelQueries(t), annotationQueries(t)) {
		for _, s := range selectorsOf(q.expr) {
			if !strings.Contains(s.matchers, `namespace="$namespace",app_kubernetes_io_instance="$release"`) {
				t.Errorf("%s: %v is not of the one release", q.where, s)
			}
			if named.MatchString(s.matchers) {
				t.Errorf("%s: %v says something of the names of pods or jobs", q.where, s)
			}
		}
	}
	aggregation := regexp.MustCompile(`\b(?:sum|min|max|avg|count|group)\b(\s+by \(namespace, app_kubernetes_io_instance[,)])?`)
	for _, q := range alertQueries(t) {
		for _, m := range aggregation.FindAllStringSubmatch(q.expr, -1) {
			if m[1] == "" {
				t.Errorf("%s: %s adds up releases", q.where, m[0])
			}
		}
	}
}

// targetLabels are what dashboards and alerts tell pods by, besides the namespace and name that Prometheus gives them.
var targetLabels = []string{"app_kubernetes_io_component", "app_kubernetes_io_instance", "llm_d_ai_role"}

// TestMonitorsGiveTheLabels looks that the PodMonitors copy from the pods what queries ask for.
func TestMonitorsGiveTheLabels(t *testing.T) {
	monitors := render(t, "--api-versions", "monitoring.coreos.com/v1/PodMonitor").of("PodMonitor")
	if len(monitors) < 3 {
		t.Errorf("%d PodMonitors: want those of prefill, decode and picker at least", len(monitors))
	}
	for _, m := range monitors {
		labels, _, err := unstructured.NestedStringSlice(m.Object, "spec", "podTargetLabels")
		if err != nil {
			t.Fatal(err)
		}
		for i := range labels {
			labels[i] = regexp.MustCompile(`\W`).ReplaceAllString(labels[i], "_") // as the operator does
		}
		if slices.Sort(labels); !slices.Equal(labels, targetLabels) {
			t.Errorf("%s gives the labels %q, want %q", m.GetName(), labels, targetLabels)
		}
	}
}

// TestReasonsInQueries holds the tokens that queries ask for against those that there are.
func TestReasonsInQueries(t *testing.T) {
	known := map[string]bool{}
	for _, v := range []pd.Verdict{pd.Local, pd.Remote, pd.Refused} {
		for _, r := range pd.Reasons(v) {
			known[string(r)] = true
		}
	}
	found := 0
	for _, q := range slices.Concat(panelQueries(t), alertQueries(t)) {
		for _, m := range regexp.MustCompile(`\breason=~?"([^"]*)"`).FindAllStringSubmatch(q.expr, -1) {
			for reason := range strings.SplitSeq(m[1], "|") {
				found++
				if !known[reason] {
					t.Errorf("%s: there is no reason %q", q.where, reason)
				}
			}
		}
	}
	if found == 0 {
		t.Error("no query asks for a reason")
	}
}

// TestPrometheusReads has promtool read the alerts and every query of the dashboards.
func TestPrometheusReads(t *testing.T) {
	for file := range ruleFiles(t) {
		promtool(t, "check", "rules", file)
	}
	type recorded struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []recorded
	for i, q := range slices.Concat(panelQueries(t), annotationQueries(t)) {
		rules = append(rules, recorded{fmt.Sprintf("panel:%d", i), filledIn(q.expr)})
	}
	file := filepath.Join(t.TempDir(), "panels.json") // JSON is YAML, too
	write(t, file, map[string]any{"groups": []any{map[string]any{"name": "panels", "rules": rules}}})
	promtool(t, "check", "rules", "--lint=none", file)
}

func TestSelectorsOf(t *testing.T) {
	for _, test := range []struct {
		expr, metrics, labels string
	}{
		{`up`, "up", ""},
		{"up > 0.5 # share", "up", ""},
		{`sum by (a, b) (rate(x:y_total{c="{\"",d!="e"}[5m])) > 0.5`, "x:y_total", "a b"},
		{`(sum(rate(x[1m])) or vector(0)) / on () group_left () sum(y)`, "x y", ""},
		{`histogram_quantile(0.9, sum by (le) (rate(h_bucket{a="b"}[1m]))) unless on (z) group(up)`, "h_bucket up", "le z"},
	} {
		var metrics, labels []string
		for _, s := range selectorsOf(test.expr) {
			metrics = append(metrics, s.metric)
		}
		labels = groupingOf(test.expr)
		if got := strings.Join(metrics, " "); got != test.metrics {
			t.Errorf("%s: metrics %q, want %q", test.expr, got, test.metrics)
		}
		if got := strings.Join(labels, " "); got != test.labels {
			t.Errorf("%s: labels %q, want %q", test.expr, got, test.labels)
		}
	}
}

// selector picks series in an expression.
type selector struct{ metric, matchers string }

func (s selector) String() string { return s.metric + "{" + s.matchers + "}" }

var (
	promToken = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[a-zA-Z_:$][\w:]*|[\d.]+\w*|\S`)
	promName  = regexp.MustCompile(`^[a-zA-Z_:][\w:]*$`)
)

// promWords are operators, and their modifiers without a list.
var promWords = []string{"and", "or", "unless", "bool"}

// promGrouping are the words before a list of labels.
var promGrouping = []string{"by", "without", "on", "ignoring", "group_left", "group_right"}

// selectorsOf finds the selectors of an expression that Prometheus can read.
func selectorsOf(expr string) (found []selector) {
	tokens := append(promToken.FindAllString(withoutGrouping(expr), -1), "")
	for i := 0; i < len(tokens)-1; i++ {
		if !promName.MatchString(tokens[i]) || tokens[i+1] == "(" || slices.Contains(promWords, tokens[i]) {
			continue
		}
		s := selector{metric: tokens[i]}
		if tokens[i+1] == "{" {
			end := i + slices.Index(tokens[i:], "}")
			s.matchers = strings.Join(tokens[i+2:end], "")
			i = end
		}
		found = append(found, s)
	}
	return found
}

var promLabels = regexp.MustCompile(`\b(?:` + strings.Join(promGrouping, "|") + `)\s*\(([^)]*)\)`)

// promComment is the rest of a line: the name of a threshold.
var promComment = regexp.MustCompile(`(?m)#.*$`)

// withoutGrouping takes away which labels a result has, and comments.
func withoutGrouping(expr string) string {
	return promLabels.ReplaceAllString(promComment.ReplaceAllString(expr, ""), " ")
}

// groupingOf returns the labels that results have, or are matched by.
func groupingOf(expr string) []string {
	labels := map[string]bool{}
	for _, m := range promLabels.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(m[1], ",") {
			if label = strings.TrimSpace(label); label != "" {
				labels[label] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(labels))
}

// filledIn puts values into Grafana's variables.
func filledIn(expr string) string {
	return strings.NewReplacer("$namespace", namespace, "$release", release, "$__rate_interval", "1m").Replace(expr)
}

func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	all := map[string]dashboard{}
	for _, file := range files(t, "dashboards/*.json") {
		var d dashboard
		read(t, file, &d)
		all[filepath.Base(file)] = d
	}
	return all
}

// panelQueries returns the queries of all panels, with Grafana's variables in them.
func panelQueries(t *testing.T) (all []query) {
	t.Helper()
	for file, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				all = append(all, query{file + ": " + p.Title + ", " + target.RefID, target.Expr})
			}
		}
	}
	return all
}

// annotationQueries are the queries of all annotations.
func annotationQueries(t *testing.T) (all []query) {
	t.Helper()
	for file, d := range dashboards(t) {
		for _, a := range d.Annotations.List {
			all = append(all, query{file + ": " + a.Name, a.Expr})
		}
	}
	return all
}

// files are those of the chart that fit a pattern.
func files(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(chart, filepath.FromSlash(pattern)))
	if err != nil || len(found) == 0 {
		t.Fatalf("no files %s: %v", pattern, err)
	}
	return found
}

// read reads JSON or YAML.
func read(t *testing.T, file string, into any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func write(t *testing.T, file string, what any) {
	t.Helper()
	data, err := json.Marshal(what)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// fromDebian finds a program of Debian's package prometheus.
func fromDebian(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		missing(t, err.Error()+" (Debian: apt-get install prometheus)")
	}
	return path
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), fromDebian(t, "promtool"), args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
