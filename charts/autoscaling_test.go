package charts_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// flowControlConfig are values with flow control.
const flowControlConfig = "epp.config.apiVersion=llm-d.ai/v1alpha1,epp.config.kind=EndpointPickerConfig,epp.config.featureGates={flowControl}," +
	"epp.config.plugins[0].type=disagg-profile-handler,epp.config.schedulingProfiles[0].name=decode,epp.config.schedulingProfiles[1].name=prefill"

// TestKEDA: what KEDA asks Prometheus, by values. Prometheus' own tool reads it.
func TestKEDA(t *testing.T) {
	const keda = "prefill.autoscaling.enabled=true,prefill.autoscaling.scaler=keda,prefill.autoscaling.prometheus=http://prometheus:9090"
	const flowControl = keda + "," + flowControlConfig
	for name, test := range map[string]struct{ set, query string }{
		"the default": {keda, `sum(tandem_inflight{namespace="models",role="prefill",service="demo-tandem-epp"})`},
		"llm-d's queue": {flowControl + ",prefill.autoscaling.metric=llm_d_epp_flow_control_queue_size",
			`sum(llm_d_epp_flow_control_queue_size{namespace="models",service="demo-tandem-epp"})`},
		"llm-d's saturation": {flowControl + ",prefill.autoscaling.metric=llm_d_epp_flow_control_pool_saturation",
			`max(llm_d_epp_flow_control_pool_saturation{namespace="models",service="demo-tandem-epp",stage="prefill"})`},
		"llm-d's running requests": {keda + ",prefill.autoscaling.metric=llm_d_epp_request_running",
			`sum(llm_d_epp_request_running{namespace="models",service="demo-tandem-epp"})`},
		"another metric": {keda + ",prefill.autoscaling.metric=tandem_endpoints",
			`sum(tandem_endpoints{namespace="models",role="prefill",service="demo-tandem-epp"})`},
		"further labels": {keda + `,prefill.autoscaling.selector.team=a"b`,
			`sum(tandem_inflight{namespace="models",role="prefill",service="demo-tandem-epp",team="a\"b"})`},
	} {
		t.Run(name, func(t *testing.T) {
			all := render(t, "--set="+test.set)
			if scalers := all.of("HorizontalPodAutoscaler"); len(scalers) > 0 {
				t.Errorf("%v scale what KEDA scales", scalers.names())
			}
			triggers, _, err := unstructured.NestedSlice(all.named(t, "ScaledObject", "-prefill").Object, "spec", "triggers")
			if err != nil || len(triggers) != 1 {
				t.Fatalf("triggers %v, %v", triggers, err)
			}
			trigger := triggers[0].(map[string]any)
			// A saturation is not divided by the pods: it is a share already.
			if want := map[bool]string{true: "Value", false: "AverageValue"}[strings.HasPrefix(test.query, "max(")]; trigger["metricType"] != want {
				t.Errorf("metricType is %v, want %s", trigger["metricType"], want)
			}
			metadata := trigger["metadata"].(map[string]any)
			if metadata["query"] != test.query {
				t.Errorf("got  %s\nwant %s", metadata["query"], test.query)
			}
			if metadata["ignoreNullValues"] != "false" {
				t.Error("without data KEDA would take the load for none, and end all pods but the fewest")
			}
			promtool(t, "check", "rules", "--lint=none", ruleFile(t, test.query))
			replicas, found, _ := unstructured.NestedInt64(all.named(t, "Deployment", "-prefill").Object, "spec", "replicas")
			if found {
				t.Errorf("the Deployment has %d replicas, which an upgrade would reset it to", replicas)
			}
		})
	}
}

// TestSaturationIsNotDivided: a HorizontalPodAutoscaler goes by a share of the pods' capacity as it is.
func TestSaturationIsNotDivided(t *testing.T) {
	all := render(t, "--set=decode.autoscaling.enabled=true,decode.autoscaling.target=0.7,decode.autoscaling.metric=tandem_pool_saturation,"+flowControlConfig)
	metrics, _, err := unstructured.NestedSlice(all.named(t, "HorizontalPodAutoscaler", "-decode").Object, "spec", "metrics")
	if err != nil || len(metrics) != 1 {
		t.Fatalf("metrics %v, %v", metrics, err)
	}
	target, _, _ := unstructured.NestedStringMap(metrics[0].(map[string]any), "external", "target")
	if target["type"] != "Value" || target["value"] != "0.7" {
		t.Errorf("target %v", target)
	}
}

// TestAdapterRule holds the shipped rule of prometheus-adapter to what HorizontalPodAutoscalers ask for: it serves their metric,
// and the series that it looks for have the labels that they select by.
func TestAdapterRule(t *testing.T) {
	var values struct {
		Rules struct {
			External []struct {
				SeriesQuery, MetricsQuery string
				Name                      struct{ Matches, As string }
			}
		}
	}
	read(t, chart+"/prometheus-adapter.yaml", &values)
	if len(values.Rules.External) != 1 {
		t.Fatalf("%d rules", len(values.Rules.External))
	}
	rule := values.Rules.External[0]
	all := render(t, cases(t)["autoscaling"]...)
	for _, scaler := range all.of("HorizontalPodAutoscaler") {
		text, err := yaml.Marshal(scaler.Object)
		if err != nil {
			t.Fatal(err)
		}
		metric := regexp.MustCompile(`metric:\n +name: (\S+)`).FindStringSubmatch(string(text))
		if metric == nil || rule.Name.As != metric[1] || !regexp.MustCompile(rule.Name.Matches).MatchString(metric[1]) {
			t.Errorf("%s asks for %q, and the rule serves %s", scaler.GetName(), metric, rule.Name.As)
		}
	}
	selectors := selectorsOf(rule.SeriesQuery)
	if len(selectors) != 1 || selectors[0].metric != rule.Name.As || !strings.Contains(selectors[0].matchers, `service!=""`) {
		t.Errorf("the rule looks for %v", selectors)
	}
	asked := strings.NewReplacer("<<.Series>>", rule.Name.As, "<<.LabelMatchers>>",
		`namespace="models",service="demo-tandem-epp",role="prefill"`).Replace(rule.MetricsQuery)
	promtool(t, "check", "rules", "--lint=none", ruleFile(t, asked))
}

// ruleFile writes a query as a rule that promtool reads.
func ruleFile(t *testing.T, query string) string {
	t.Helper()
	file := t.TempDir() + "/rule.json"
	rules := []any{map[string]string{"record": "tested:query", "expr": query}}
	write(t, file, map[string]any{"groups": []any{map[string]any{"name": "tested", "rules": rules}}})
	return file
}

// TestMarkedPods: only with epp.markPodsToGo may the picker change pods, and is told to.
func TestMarkedPods(t *testing.T) {
	for name, want := range map[string]bool{"sized": true, "elastic": true, "keda": false} {
		t.Run(name, func(t *testing.T) {
			all := render(t, cases(t)[name]...)
			rules, _, err := unstructured.NestedSlice(all.named(t, "Role", "-epp").Object, "rules")
			if err != nil {
				t.Fatal(err)
			}
			patches := 0
			for _, rule := range rules {
				r := rule.(map[string]any)
				resources, _, _ := unstructured.NestedStringSlice(r, "resources")
				verbs, _, _ := unstructured.NestedStringSlice(r, "verbs")
				for _, verb := range verbs {
					if verb == "list" || verb == "watch" {
						continue
					}
					if patches++; verb != "patch" || !slices.Equal(resources, []string{"pods"}) {
						t.Errorf("the picker may %s %v", verb, resources)
					}
				}
			}
			text, err := yaml.Marshal(all.named(t, "Deployment", "-epp").Object)
			if err != nil {
				t.Fatal(err)
			}
			if flag := strings.Contains(string(text), "- --mark-pods-to-go\n"); flag != want || (patches == 1) != want || patches > 1 {
				t.Errorf("the flag is given: %v, and %d verbs change something, want %v", flag, patches, want)
			}
		})
	}
}
