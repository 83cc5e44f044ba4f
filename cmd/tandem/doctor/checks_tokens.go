package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
)

// checkedTokens is the metric in which pickers count the prompts whose token counts, their own and the engine's, they compared.
const checkedTokens = "tandem_tokens_checked_total"

// tolerated is the share of prompts whose counts may differ: engines count what they add for members that the picker does not know.
const tolerated = 0.05

// checkTokens looks at pickers that make or ask for the token ids of prompts.
func checkTokens(ctx context.Context, f *fleet) finding {
	pickers := f.readable(func(p *picker) bool {
		return p.hasOperations() && p.pageErr == nil && len(series(p.page, checkedTokens)) > 0
	})
	if len(pickers) == 0 {
		return finding{}
	}
	return each(ctx, pickers, f.how.Timeout, func(_ context.Context, p *picker) finding { return counted(p.page) })
}

// counted says how a picker's counts of tokens agree with engines', by its metrics page.
func counted(page promtext.Page) finding {
	type counts struct{ exact, all float64 }
	sums := map[string]counts{}
	for _, s := range series(page, checkedTokens) {
		key := fmt.Sprintf("%s (%s)", cmp.Or(s.Labels["model"], "all models"), s.Labels["by"])
		c := sums[key]
		c.all += s.Value
		if s.Labels["result"] == "exact" {
			c.exact += s.Value
		}
		sums[key] = c
	}
	var wrong []string
	compared := 0.0
	for _, key := range slices.Sorted(maps.Keys(sums)) {
		c := sums[key]
		compared += c.all
		if off := c.all - c.exact; off > tolerated*c.all {
			wrong = append(wrong, fmt.Sprintf("%s: %.0f of %.0f prompts", key, off, c.all))
		}
	}
	switch {
	case len(wrong) > 0:
		return finding{verdict: warn, seen: "engines count other tokens in prompts than the picker, of " + strings.Join(wrong, ", ")}
	case compared == 0:
		return finding{verdict: unknown, seen: "no answer has reported how many tokens its prompt has",
			do: "send requests through the sidecar, streams with stream_options.include_usage"}
	}
	return finding{verdict: ok, seen: fmt.Sprintf("the counts of %.0f prompts were compared", compared)}
}
