package doctor

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := newProgress(&log)
		stop := p.start()
		for _, c := range checks {
			if c.name != "keep-alive" && c.name != "probe" {
				p.done(c.name)
			}
		}
		<-time.After(progressInterval + time.Millisecond)
		p.done("probe")
		<-time.After(progressInterval)
		p.done("keep-alive")
		<-time.After(progressInterval)
		stop()
		n := len(checks)
		want := fmt.Sprintf("%d of %d checks done, waiting for probe, keep-alive\n%d of %d checks done, waiting for keep-alive\n", n-2, n, n-1, n)
		if log.String() != want {
			t.Errorf("wrote\n%s\nwant\n%s", &log, want)
		}
	})
}
