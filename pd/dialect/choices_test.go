package dialect_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
)

// perChoice is a dialect with a hand-off for one choice.
type perChoice struct{ dialect.Dialect }

func (perChoice) MaxChoices() int { return 4 }

// batches is one that also takes several prompts.
type batches struct{ perChoice }

func (batches) Fit(r *request.Request) request.Fit {
	if r.Choices() == 1 {
		return request.FitSplit
	}
	return request.FitLocal
}

func TestFit(t *testing.T) {
	one, _ := dialect.New("nixlv2", dialect.Options{})
	cases := []struct {
		name    string
		of      dialect.Dialect
		in      string
		fit     request.Fit
		choices int
	}{
		{"one choice", perChoice{}, `{"prompt":"x"}`, request.FitSplit, 1},
		{"several", perChoice{}, `{"prompt":"x","n":4}`, request.FitSplit, 4},
		{"more than the dialect wants", perChoice{}, `{"prompt":"x","n":5}`, request.FitLocal, 1},
		{"several, refused by engines", perChoice{}, `{"prompt":"x","n":2,"max_tokens":0}`, request.FitDoubted, 1},
		{"several of several prompts", perChoice{}, `{"prompt":["x","y"],"n":2}`, request.FitLocal, 2},
		{"several of several prompts, which the dialect can split", batches{}, `{"prompt":["x","y"],"n":2}`, request.FitSplit, 2},
		{"several, of a dialect whose hand-off is for one request", one, `{"prompt":"x","n":2}`, request.FitLocal, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if fit, choices := dialect.Fit(c.of, asked(t, pd.APICompletions, c.in)); fit != c.fit || choices != c.choices {
				t.Errorf("fit %d, %d choices", fit, choices)
			}
		})
	}
}
