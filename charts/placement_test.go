package charts_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestSpread: the constraints by which a component's pods are spread, by values.
func TestSpread(t *testing.T) {
	const zone = "epp.topologySpreadConstraints[0].topologyKey=zone,epp.topologySpreadConstraints[0].maxSkew=2," +
		"epp.topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule"
	const host = "kubernetes.io/hostname 1 ScheduleAnyway epp"
	for name, test := range map[string]struct {
		set  string
		want []string
	}{
		"the default":             {"", []string{host}},
		"none":                    {"epp.spreadBy=", nil},
		"by another label":        {"epp.spreadBy=zone", []string{"zone 1 ScheduleAnyway epp"}},
		"one more":                {zone, []string{host, "zone 2 DoNotSchedule epp"}},
		"in place of the chart's": {zone + ",epp.spreadBy=zone", []string{"zone 2 DoNotSchedule epp"}},
		"pods of one's own": {zone + ",epp.topologySpreadConstraints[0].labelSelector.matchLabels.team=search",
			[]string{host, "zone 2 DoNotSchedule search"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, c := range podOf(t, render(t, "--set="+test.set), "-epp").Spec.TopologySpreadConstraints {
				labels := c.LabelSelector.MatchLabels
				got = append(got, strings.Join([]string{c.TopologyKey, string('0' + c.MaxSkew), string(c.WhenUnsatisfiable),
					labels["app.kubernetes.io/component"] + labels["team"]}, " "))
				if ownPods := labels["team"] == ""; ownPods != slices.Contains(c.MatchLabelKeys, "pod-template-hash") {
					t.Errorf("%s: pods of older revisions count: %t", c.TopologyKey, ownPods)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

// TestWeights: where engines download weights to, by values. Compiled kernels stay in the pod.
func TestWeights(t *testing.T) {
	for name, test := range map[string]struct {
		set, volume, at string
		group           bool
	}{
		"the pod's own":        {"", "emptyDir", "/cache", false},
		"a claim":              {"model.cache.claimName=weights", "claim weights", "/cache/huggingface", true},
		"a folder of the node": {"model.cache.hostPath=/srv/weights", "node /srv/weights Directory", "/cache/huggingface", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := render(t, "--set="+test.set)
			for _, role := range []string{"prefill", "decode"} {
				spec := podOf(t, all, "-"+role).Spec
				engine := spec.Containers[0]
				if env := engine.Env[slices.IndexFunc(engine.Env, func(e corev1.EnvVar) bool { return e.Name == "HF_HOME" })]; env.Value != "/cache/huggingface" {
					t.Errorf("%s downloads to %s", role, env.Value)
				}
				mounts := map[string]string{}
				for _, m := range engine.VolumeMounts {
					mounts[m.MountPath] = m.Name
				}
				if got := volumeKind(spec, mounts[test.at]); got != test.volume || volumeKind(spec, mounts["/cache"]) != "emptyDir" {
					t.Errorf("%s: %s is %s and /cache %s, want %s and emptyDir", role, test.at, got, volumeKind(spec, mounts["/cache"]), test.volume)
				}
				if got := spec.SecurityContext.FSGroup != nil; got != test.group {
					t.Errorf("%s has a group for its volumes: %t, want %t", role, got, test.group)
				}
			}
		})
	}
}

func volumeKind(spec corev1.PodSpec, name string) string {
	for _, v := range spec.Volumes {
		switch {
		case v.Name != name:
		case v.EmptyDir != nil:
			return "emptyDir"
		case v.PersistentVolumeClaim != nil:
			return "claim " + v.PersistentVolumeClaim.ClaimName
		case v.HostPath != nil:
			return "node " + v.HostPath.Path + " " + string(*v.HostPath.Type)
		}
	}
	return "none"
}

// TestInitContainers holds that a user's initContainers end before the first sidecar begins, which would otherwise be ready for
// an engine that nothing has prepared.
func TestInitContainers(t *testing.T) {
	all := render(t, append(cases(t)["shared"], "--set=decode.parallelism.data=2,prefill.parallelism.data=2")...)
	for role, want := range map[string][]string{"prefill": {"tools", "adapters"}, "decode": {"tools", "adapters", "sidecar", "sidecar-1"}} {
		var got []string
		for _, c := range podOf(t, all, "-"+role).Spec.InitContainers {
			got = append(got, c.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", role, got, want)
		}
	}
}
