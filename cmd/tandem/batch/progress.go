package batch

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// progress shows how far an upload or a batch is: on a terminal by a line that is updated in place, otherwise by a line for each change of
// the status and each tenth of the lines.
type progress struct {
	to       io.Writer
	terminal bool
	said     string // without a terminal, the status and the tenth that were last printed
	past     []sample
	shown    time.Time // when an upload was last shown
}

// sample is how many lines had a result at a time.
type sample struct {
	at   time.Time
	done int64
}

const (
	// rateOver is the time over which the pace of a batch is measured.
	rateOver = time.Minute
	barWidth = 24
	// refresh is the least time between two updates of an upload's line.
	refresh = 200 * time.Millisecond
)

func newProgress(to io.Writer) *progress { return &progress{to: to, terminal: boot.IsTerminal(to)} }

// upload shows how much of a file was sent.
func (p *progress) upload(sent, total int64) {
	if now := time.Now(); p.terminal && now.Sub(p.shown) >= refresh {
		p.shown = now
		p.update(fmt.Sprintf("uploading %s %s of %s", bar(sent, total), size(sent), size(total)))
	}
}

// batch shows a batch.
func (p *progress) batch(b *object, now time.Time) {
	done := b.Counts.Completed + b.Counts.Failed
	line := p.line(b, done, now)
	if p.terminal {
		p.update(line)
		return
	}
	tenths := int64(0)
	if b.Counts.Total > 0 {
		tenths = 10 * done / b.Counts.Total
	}
	if key := fmt.Sprint(b.Status, tenths); key != p.said {
		p.said = key
		_, _ = fmt.Fprintln(p.to, line) // nothing depends on it
	}
}

// trouble says that the server does not answer.
func (p *progress) trouble(err error) {
	if p.terminal {
		p.update(printable(err.Error()) + "; trying again")
	} else if p.said != "trouble" {
		p.said = "trouble"
		_, _ = fmt.Fprintf(p.to, "%s; trying again\n", printable(err.Error()))
	}
}

func (p *progress) update(line string) { _, _ = fmt.Fprint(p.to, boot.EraseLine+line) }

func (p *progress) clear() {
	if p.terminal {
		p.update("")
	}
}

// line describes a batch: its status, and what it has done and has to do.
func (p *progress) line(b *object, done int64, now time.Time) string {
	if b.Counts.Total == 0 {
		return b.Status
	}
	text := fmt.Sprintf("%s %s %d of %d lines", b.Status, bar(done, b.Counts.Total), done, b.Counts.Total)
	if b.Counts.Failed > 0 {
		text += fmt.Sprintf(", %d failed", b.Counts.Failed)
	}
	if b.ended() {
		return text
	}
	rate := p.rate(b, done, now)
	if b.Status != "in_progress" || rate <= 0 {
		return text
	}
	left := time.Duration(float64(b.Counts.Total-done) / rate * float64(time.Second))
	text += fmt.Sprintf(", %.3g lines/s, %s left", rate, rough(left))
	if window := time.Unix(b.ExpiresAt, 0).Sub(now); b.ExpiresAt > 0 && left > window {
		text += fmt.Sprintf("; the window ends in %s", rough(window))
	}
	return text
}

// rate returns the lines in a second during the last minute, or, at first, since the batch began. 0: it is not known.
func (p *progress) rate(b *object, done int64, now time.Time) float64 {
	first := sample{time.Unix(b.InProgressAt, 0), 0}
	p.past = append(p.past, sample{now, done})
	for len(p.past) > 2 && now.Sub(p.past[1].at) >= rateOver {
		p.past = p.past[1:]
	}
	if now.Sub(p.past[0].at) >= rateOver/4 {
		first = p.past[0]
	}
	if took := now.Sub(first.at).Seconds(); took > 0 {
		return float64(done-first.done) / took
	}
	return 0
}

// bar draws a share, and says it in percent.
func bar(done, total int64) string {
	share := 0.0
	if total > 0 {
		share = min(float64(done)/float64(total), 1)
	}
	full := int(share * barWidth)
	return fmt.Sprintf("[%s%s] %5.1f %%", strings.Repeat("#", full), strings.Repeat("-", barWidth-full), 100*share)
}

// rough rounds a time to two units.
func rough(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d >= 100*24*time.Hour:
		return "over 100d"
	case d >= 24*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}
