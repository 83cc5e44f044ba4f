package dialect

import (
	"strings"
	"testing"
)

func TestNotices(t *testing.T) {
	if got, ok := ReleaseNotice("cmpl-1-0-8a7a7f67"); !ok || string(got) != "cmpl-1-0-8a7a7f67:1" {
		t.Errorf("release: %q, %t", got, ok)
	}
	if got, ok := ReleaseNotice("a:b"); !ok || string(got) != "a:b:1" {
		t.Errorf("the engine splits at the last colon, this gives %q, %t", got, ok)
	}
	if got, ok := HeartbeatNotice([]string{"a"}); !ok || string(got) != "HB:a" {
		t.Errorf("heartbeat of one: %q, %t", got, ok)
	}
	if got, ok := HeartbeatNotice([]string{"a", "é:1", "c"}); !ok || string(got) != "HB:a,é:1,c" {
		t.Errorf("heartbeat of three: %q, %t", got, ok)
	}
	if _, ok := HeartbeatNotice(nil); ok {
		t.Error("a heartbeat of no request")
	}
}

func TestNoticesCannotNameAll(t *testing.T) {
	for name, id := range map[string]string{
		"nothing": "", "two": "a,b", "a line's end": "a\n", "a zero": "a\x00b", "delete": "a\x7f",
		"a control of Latin-1": "a\u0085",
		"no text":              "a\xff", "what reads as a heartbeat": "HB:a", "endless": strings.Repeat("a", MaxNoticeID+1),
	} {
		if got, ok := ReleaseNotice(id); ok || got != nil || Noticeable(id) {
			t.Errorf("%s: released by %q", name, got)
		}
		if got, ok := HeartbeatNotice([]string{"good", id}); ok || got != nil {
			t.Errorf("%s: held by %q", name, got)
		}
	}
	if !Noticeable(strings.Repeat("a", MaxNoticeID)) {
		t.Error("the longest is refused")
	}
}

func BenchmarkHeartbeatNotice(b *testing.B) {
	ids := make([]string, 100)
	for i := range ids {
		ids[i] = "cmpl-8f72f0f689d14879-0-b61e59d0"
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := HeartbeatNotice(ids); !ok {
			b.Fatal("refused")
		}
	}
}
