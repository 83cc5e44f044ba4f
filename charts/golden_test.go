package charts_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the goldens, the table of the chart's README and the descriptions of its schema")

// cases returns the files in testdata/values: values, and on top of each the further arguments of helm. Every preset is one.
func cases(t *testing.T) map[string][]string {
	t.Helper()
	files, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no values to render: %v", err)
	}
	all := map[string][]string{}
	for _, file := range files {
		all[name(file)] = append([]string{"-f=" + base}, append(comments(t, file, "helm: "), "-f", file)...)
	}
	return all
}

// TestGoldens shows in a review what a change of the chart changes in a cluster. Dashboards are left out: they are files of the
// chart already.
func TestGoldens(t *testing.T) {
	for name, args := range cases(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args = append(args, "--set=monitoring.dashboards=false")
			got, err := template(t, args...)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, filepath.Join("testdata", "golden", name+".yaml"), got)
			if again, _ := template(t, args...); again != got {
				t.Error("rendered twice, it differs")
			}
		})
	}
}

// compare holds a text against a file, or writes it there.
func compare(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not what comes out; go test ./charts -update writes it anew, git diff shows the difference", file)
	}
}

// TestNotes shows what people read after an installation.
func TestNotes(t *testing.T) {
	for name, args := range cases(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said, err := helm(t, append([]string{"install", release, chart, "--namespace", namespace, "--dry-run=client",
				"--hide-secret"}, withoutVersions(args)...)...)
			if err != nil {
				t.Fatal(err)
			}
			_, notes, found := strings.Cut(said, "\nNOTES:\n")
			if !found {
				t.Fatal("there are none")
			}
			compare(t, filepath.Join("testdata", "golden", name+".notes.txt"), notes)
		})
	}
}

// TestDashboardsAreWhole holds that Grafana gets the files of the chart as they are.
func TestDashboardsAreWhole(t *testing.T) {
	files, err := filepath.Glob(chart + "/dashboards/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("the chart has no dashboards: %v", err)
	}
	all := render(t)
	for _, file := range files {
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		board := strings.TrimSuffix(filepath.Base(file), ".json")
		got := data(t, all.named(t, "ConfigMap", "-board-"+board), "tandem-"+board+".json")
		if strings.TrimSpace(got) != strings.TrimSpace(string(want)) {
			t.Errorf("the ConfigMap of %s has something else", file)
		}
	}
}

func TestMonitorsWhereTheirKindsAre(t *testing.T) {
	for _, wanted := range []string{"auto", "true"} {
		all := render(t, append(monitors, "--set=monitoring.podMonitor="+wanted, "--set=monitoring.prometheusRule="+wanted)...)
		if len(all.of("PodMonitor")) != 4 || len(all.of("PrometheusRule")) != 1 {
			t.Errorf("%s: got %v", wanted, all.names())
		}
	}
	none := append(monitors, "--set=monitoring.podMonitor=false", "--set=monitoring.prometheusRule=false")
	for _, args := range [][]string{nil, none} {
		all := render(t, args...)
		if len(all.of("PodMonitor")) != 0 || len(all.of("PrometheusRule")) != 0 {
			t.Errorf("%v: got %v", args, all.names())
		}
	}
}

func TestLint(t *testing.T) {
	for name, args := range cases(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lint := append([]string{"lint", "--strict", "--kube-version", kubeVersion, chart}, withoutVersions(args)...)
			if said, err := helm(t, lint...); err != nil {
				t.Errorf("%v\n%s", err, said)
			}
		})
	}
}

// TestPresets holds that each preset of the chart is among the cases.
func TestPresets(t *testing.T) {
	presets, err := filepath.Glob(chart + "/values-*.yaml")
	if err != nil || len(presets) == 0 {
		t.Fatalf("the chart has no presets: %v", err)
	}
	rendered := map[string]bool{}
	for _, args := range cases(t) {
		for _, arg := range args {
			rendered[arg] = true
		}
	}
	for _, preset := range presets {
		if !rendered["-f="+preset] {
			t.Errorf("nothing in testdata/values renders %s", preset)
		}
	}
}
