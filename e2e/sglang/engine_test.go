package sglang

import (
	"slices"
	"testing"
)

func TestFlagsTellTheRole(t *testing.T) {
	for role, want := range map[Role][]string{
		"":      nil,
		Plain:   nil,
		Prefill: {"--disaggregation-bootstrap-port=8998", "--disaggregation-mode=prefill", "--disaggregation-transfer-backend=nixl"},
		Decode: {"--disaggregation-decode-retraction-backup=cpu_tensor", "--disaggregation-mode=decode",
			"--disaggregation-transfer-backend=nixl"},
	} {
		plain := Options{}.args(8998)
		got := slices.DeleteFunc(Options{Role: role}.args(8998), func(a string) bool { return slices.Contains(plain, a) })
		if !slices.Equal(got, want) {
			t.Errorf("role %q: the flags %q, want %q", role, got, want)
		}
	}
}

func TestRanksHaveAProcessorEach(t *testing.T) {
	const want = "SGLANG_CPU_OMP_THREADS_BIND=0|1|2"
	if env := (Options{Ranks: 3}).environment(""); !slices.Contains(env, want) {
		t.Errorf("%s is missing in %q", want, env)
	}
}
