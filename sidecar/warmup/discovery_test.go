package warmup

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestDiscovery(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pods")
	write(t, file, "10.0.0.1:80\n[fd00::1]:81,pod-1:82\n")
	cases := []struct{ source, want string }{
		{"file:" + file, "10.0.0.1:80 [fd00::1]:81 pod-1:82"},
		{"dns://127.0.0.1:8000", "127.0.0.1:8000"},
		{"dns://[::1]:8000", "[::1]:8000"},
	}
	for _, c := range cases {
		find, err := ParseDiscovery(c.source)
		if err != nil {
			t.Errorf("%s: %v", c.source, err)
			continue
		}
		targets, err := find(within(t))
		var got []string
		for _, target := range targets {
			got = append(got, target.String())
		}
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, %v", c.source, got, err)
		}
	}
	for _, source := range []string{"file:", "dns://", "dns://host", "dns://host:0", "dns://a:1,b:2", "http://host:80", "host:80", file} {
		if _, err := ParseDiscovery(source); err == nil {
			t.Errorf("%q was taken", source)
		}
	}
	write(t, file, "10.0.0.1:80\nnonsense\n")
	if targets, err := readTargets(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("%v, %v of a file with nonsense", targets, err)
	}
	write(t, file, strings.Repeat("x", 1<<17))
	if targets, err := readTargets(file); err == nil {
		t.Errorf("%v of a file with an endless line", targets)
	}
	if _, err := readTargets(filepath.Join(file, "absent")); err == nil {
		t.Error("an absent file was read")
	}
}
