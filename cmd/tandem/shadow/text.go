package shadow

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/epp/shadow"
)

// kinds say in what decisions differ.
var kinds = map[shadow.Kind]string{
	shadow.Same:    "the same",
	shadow.Prefill: "another prefill endpoint",
	shadow.Decode:  "another decode endpoint",
	shadow.Verdict: "local instead of remote prefill, or the reverse",
	shadow.Refused: "one of them refuses the request",
}

// text writes a report for a person, with at most top differences.
func text(v *shadow.View, top int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "shadow      %s, since %s: %d picks\n", v.Config, v.Since.UTC().Format(time.RFC3339), v.Picks)
	if v.Picks == 0 {
		b.WriteString("nothing was picked for since then: send some requests\n")
		return b.String()
	}
	fmt.Fprintf(&b, "in short    %s\n", short(v))
	fmt.Fprintf(&b, "prediction  %s; %s\n\n", checked("time to first token", &v.TTFT), checked("time between tokens", &v.ITL))
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "picks\tshare\twhat the shadow would do\tTTFT gain\tfrom\tto\tITL gain\tfrom\tto\n")
	for _, g := range v.Kinds {
		fmt.Fprintf(w, "%d\t%.1f%%\t%s\t%s\t%s\n", g.Picks, 100*float64(g.Picks)/float64(v.Picks), kinds[g.Kind], gain(&g, g.TTFT), gain(&g, g.ITL))
	}
	_ = w.Flush() // into a strings.Builder
	if top = min(top, len(v.Latest)); top == 0 {
		return b.String()
	}
	b.WriteString("\nlatest differences\n")
	for _, d := range v.Latest[:top] {
		fmt.Fprintf(&b, "%s  %s, %d tokens\n  live    %s\n  shadow  %s\n", d.At.UTC().Format("15:04:05.000"), d.Request, d.Tokens, decision(&d.Live), decision(&d.Shadow))
	}
	return b.String()
}

// short says what the whole is expected to bring.
func short(v *shadow.View) string {
	g := v.All.TTFT
	switch interval := fmt.Sprintf("%s on average (%s to %s with %.0f %% confidence)", seconds(g.Mean), seconds(g.Low), seconds(g.High), 100*v.Confidence); {
	case g.Live == 0:
		return "no request has ended as its sidecar reports: nothing can be predicted yet"
	case g.Low > 0:
		return fmt.Sprintf("first tokens would come earlier by %s of %s", interval, seconds(g.Live))
	case g.High < 0:
		return fmt.Sprintf("first tokens would come later: the gain is %s of %s", interval, seconds(g.Live))
	default:
		return fmt.Sprintf("whether first tokens would come earlier or later is not known: the gain is %s of %s", interval, seconds(g.Live))
	}
}

// checked says how well predictions were met.
func checked(what string, c *latency.Calibration) string {
	if c.Requests == 0 {
		return "none of the " + what + " was checked yet"
	}
	return fmt.Sprintf("%s of %d requests: off by %.0f %% on average, %.0f %% within the predicted p90", what, c.Requests, 100*c.Error, 100*c.Within90)
}

func gain(of *shadow.Group, g shadow.Gain) string {
	if of.Kind == shadow.Same || of.Kind == shadow.Refused {
		return "–\t–\t–"
	}
	return seconds(g.Mean) + "\t" + seconds(g.Low) + "\t" + seconds(g.High)
}

func decision(d *shadow.Decision) string {
	if d.Decode == "" {
		return d.Verdict
	}
	said := fmt.Sprintf("%s (%s) on %s", d.Verdict, d.Reason, d.Decode)
	if d.Prefill != "" {
		said += ", prompt on " + d.Prefill
	}
	if d.TTFT > 0 {
		said += fmt.Sprintf(": first token after %s, then one each %s", seconds(d.TTFT), seconds(d.ITL))
	}
	return said
}

// seconds prints a time with three digits.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d.Abs() >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}
