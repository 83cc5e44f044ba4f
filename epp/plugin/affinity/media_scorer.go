package affinity

import (
	"cmp"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// MediaScorer prefers endpoints that have encoded a request's images, audio and video before. The score is the share of the
// request's items that an endpoint has encoded lately; without such items all scores are 0. An item that is there twice counts once.
type MediaScorer struct {
	// ProducerName names the mm-embeddings-cache-producer. Default "": mm-embeddings-cache-producer.
	ProducerName string `yaml:"producerName"`
}

// NewMediaScorer returns the parameters with their defaults.
func NewMediaScorer() epp.Plugin { return &MediaScorer{} }

// Problems implements epp.Plugin.
func (*MediaScorer) Problems(epp.Report) {}

// References implements epp.Referrer.
func (p *MediaScorer) References() map[string]string {
	return param.References("producerName", cmp.Or(p.ProducerName, mediaProducer))
}

// Build implements epp.Plugin.
func (p *MediaScorer) Build(b *epp.Builder) (any, error) {
	m, err := param.Refer[*Media](b, "producerName", cmp.Or(p.ProducerName, mediaProducer))
	return mediaScorer{m}, err
}

type mediaScorer struct{ media *Media }

// Score implements epp.Scorer.
func (s mediaScorer) Score(r *epp.Round, c []epp.Candidate, scores []float64) {
	if wanted := r.Request.Prompt.Media; len(wanted) > 0 {
		s.media.rate(wanted, c, scores)
	}
}
