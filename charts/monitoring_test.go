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

// alertsTest are promtool's unit tests of the alerts.
const alertsTest = "testdata/monitoring/alerts_test.yaml"

// dashboard is as much of Grafana's dashboard as there are rules for.
type dashboard struct {
	UID           string
	Title         string
	Tags          []string
	SchemaVersion int
	Templating    struct{ List []variable }
	Panels        []panel
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
	Targets                  []struct{ RefID, Expr, LegendFormat string }
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
		})
	}
	if len(uids) < 5 {
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

// TestQueriesAreOfOneRelease keeps queries from adding up releases, and from guessing the role of a pod by its name.
func TestQueriesAreOfOneRelease(t *testing.T) {
	named := regexp.MustCompile(`(^|,)(pod|instance|job)(=|!)`)
	for _, q := range panelQueries(t) {
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
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []rule
	for i, q := range panelQueries(t) {
		rules = append(rules, rule{fmt.Sprintf("panel:%d", i), filledIn(q.expr)})
	}
	file := filepath.Join(t.TempDir(), "panels.json") // JSON is YAML, too
	write(t, file, map[string]any{"groups": []any{map[string]any{"name": "panels", "rules": rules}}})
	promtool(t, "check", "rules", "--lint=none", file)
}

// TestAlerts runs promtool's unit tests, and looks that each alert is shown to fire and not to.
func TestAlerts(t *testing.T) {
	promtool(t, "test", "rules", alertsTest)
	var file struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string
				ExpAlerts []any `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	read(t, alertsTest, &file)
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, a := range test.AlertRuleTest {
			if len(a.ExpAlerts) > 0 {
				fires[a.Alertname] = true
			} else {
				silent[a.Alertname] = true
			}
		}
	}
	alerts := 0
	for file, groups := range ruleFiles(t) {
		for _, g := range groups {
			for _, r := range g.Rules {
				alerts++
				if !fires[r.Alert] || !silent[r.Alert] {
					t.Errorf("%s is tested to fire: %t, to stay silent: %t", r.Alert, fires[r.Alert], silent[r.Alert])
				}
				if r.For == "" || !slices.Contains([]string{"warning", "critical"}, r.Labels["severity"]) ||
					r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
					t.Errorf("%s: %s lacks for, severity, summary or description", file, r.Alert)
				}
			}
		}
	}
	if alerts == 0 {
		t.Error("there are no alerts")
	}
}

func TestSelectorsOf(t *testing.T) {
	for _, test := range []struct {
		expr, metrics, labels string
	}{
		{`up`, "up", ""},
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

// withoutGrouping takes away which labels a result has.
func withoutGrouping(expr string) string { return promLabels.ReplaceAllString(expr, " ") }

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

type ruleGroup struct {
	Name  string
	Rules []struct {
		Alert, Expr, For    string
		Labels, Annotations map[string]string
	}
}

func ruleFiles(t *testing.T) map[string][]ruleGroup {
	t.Helper()
	all := map[string][]ruleGroup{}
	for _, file := range files(t, "alerts/*.yaml") {
		var rules struct{ Groups []ruleGroup }
		read(t, file, &rules)
		all[file] = rules.Groups
	}
	return all
}

func alertQueries(t *testing.T) (all []query) {
	t.Helper()
	for _, groups := range ruleFiles(t) {
		for _, g := range groups {
			for _, r := range g.Rules {
				all = append(all, query{r.Alert, r.Expr})
			}
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
