package charts_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// alertsTest are promtool's unit tests of the alerts.
const alertsTest = "testdata/monitoring/alerts_test.yaml"

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
				if r.Alert == "" {
					continue // a recording rule
				}
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

// TestThresholds holds that each threshold of the values is one of a rule, with the same default, and changes that rule alone.
func TestThresholds(t *testing.T) {
	var values struct {
		Monitoring struct{ Thresholds map[string]float64 }
	}
	read(t, chart+"/values.yaml", &values)
	original := rulesOf(t)
	inRules := map[string]int{}
	for _, text := range original {
		for _, m := range regexp.MustCompile(`([\d.]+) # (\w+)`).FindAllStringSubmatch(text, -1) {
			inRules[m[2]]++
			if value, err := strconv.ParseFloat(m[1], 64); err != nil || value != values.Monitoring.Thresholds[m[2]] {
				t.Errorf("%s is %s in the rule and %v in the values", m[2], m[1], values.Monitoring.Thresholds[m[2]])
			}
		}
	}
	for name, value := range values.Monitoring.Thresholds {
		if inRules[name] != 1 {
			t.Errorf("%d rules have the threshold %s", inRules[name], name)
		}
		changed := fmt.Sprint(value * 1.0625)
		if name == "availability" {
			changed = "0.9995"
		}
		different := 0
		for rule, text := range rulesOf(t, "--set-json=monitoring.thresholds."+name+"="+changed) {
			if text != original[rule] {
				different++
				if !strings.Contains(text, changed+" # "+name) {
					t.Errorf("%s: want %s in\n%s", name, changed, text)
				}
			}
		}
		if different != 1 {
			t.Errorf("%s changes %d rules", name, different)
		}
	}
}

// rulesOf are the expressions of the rendered rules, by name.
func rulesOf(t *testing.T, args ...string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, r := range renderedRules(t, args...) {
		found[r.Alert+r.Record] = r.Expr
	}
	return found
}

func renderedRules(t *testing.T, args ...string) (rules []rule) {
	t.Helper()
	object := render(t, append(args, monitors...)...).of("PrometheusRule")[0].Object["spec"]
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var spec struct{ Groups []ruleGroup }
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	for _, g := range spec.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules
}

// TestRunbooks holds that each alert leads to a heading of docs/runbook.md, and the other way round, and that the page may be
// a copy elsewhere.
func TestRunbooks(t *testing.T) {
	page, err := os.ReadFile("../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	headings := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^## (Tandem\w+)$`).FindAllStringSubmatch(string(page), -1) {
		headings[m[1]] = true
	}
	const copied = "https://wiki.example.com/tandem"
	for base, args := range map[string][]string{
		"https://github.com/tandem-serving/tandem/blob/main/docs/runbook.md": nil,
		copied: {"--set=monitoring.runbooks=" + copied},
	} {
		alerts := map[string]bool{}
		for _, r := range renderedRules(t, args...) {
			if r.Alert == "" {
				continue
			}
			alerts[r.Alert] = true
			if got, want := r.Annotations["runbook_url"], base+"#"+strings.ToLower(r.Alert); got != want {
				t.Errorf("%s leads to %s, want %s", r.Alert, got, want)
			}
		}
		if !maps.Equal(alerts, headings) {
			t.Errorf("alerts %v, headings %v", slices.Sorted(maps.Keys(alerts)), slices.Sorted(maps.Keys(headings)))
		}
	}
}

type ruleGroup struct {
	Name  string
	Rules []rule
}

// rule is an alert or a recording rule.
type rule struct {
	Alert, Record, Expr, For string
	Labels, Annotations      map[string]string
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
				all = append(all, query{r.Alert + r.Record, r.Expr})
			}
		}
	}
	return all
}
