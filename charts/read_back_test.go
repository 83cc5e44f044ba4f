package charts_test

import (
	"strings"
	"testing"
)

// Prefill engines read back, and decode engines keep no blocks for it; sidecars know the address by which the picker names their pod.
func TestReadBack(t *testing.T) {
	for name, args := range map[string][]string{"vllm": nil, "sim": cases(t)["sim"]} {
		t.Run(name, func(t *testing.T) {
			for _, on := range []bool{false, true} {
				all := render(t, append(args, map[bool]string{true: "--set=sidecar.readBack=true", false: "--set=sidecar.readBack=false"}[on])...)
				sidecar := sidecarOf(t, all)
				if has(sidecar.Args, "--read-back") != on {
					t.Errorf("readBack %t: the sidecar has %q", on, sidecar.Args)
				}
				address := false
				for _, e := range sidecar.Env {
					address = address || e.Name == "POD_IP" && e.ValueFrom.FieldRef.FieldPath == "status.podIP"
				}
				if address != on {
					t.Errorf("readBack %t: the sidecar knows the pod's address: %t", on, address)
				}
				for role, reads := range map[string]bool{"-prefill": on, "-decode": false} {
					said := strings.Join(podOf(t, all, role).Spec.Containers[0].Args, " ")
					if strings.Contains(said, "bidirectional") != reads {
						t.Errorf("readBack %t: the engine of %s has %s", on, role, said)
					}
				}
			}
		})
	}
	if _, err := template(t, "--set=sidecar.readBack=true,sidecar.connector=mooncake"); err == nil || !strings.Contains(err.Error(), "sidecar.readBack") {
		t.Errorf("with another protocol: %v", err)
	}
}
