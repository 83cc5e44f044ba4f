package affinity

import (
	"cmp"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// MediaProducer remembers which images, audio and video each endpoint has encoded, for mm-embeddings-cache-scorer: engines keep the
// embeddings for a while. Two items are the same if the clients wrote them alike. It notes an item for the endpoints that encode it;
// llm-d notes it for the decode endpoint, also where a prefill endpoint computes the prompt. A configuration that names none
// gets one.
type MediaProducer struct {
	// CacheSizeInMBPerServer is the size of an engine's cache of embeddings, in MiB. 2 MiB are taken for an item. Default 4096;
	// at most 2097152.
	CacheSizeInMBPerServer int `yaml:"cacheSizeInMBPerServer"`
	// EncodeProfile names the profile that picks endpoints which only encode. Default "": encode.
	EncodeProfile string `yaml:"encodeProfile"`
}

const (
	mediaProducer  = "mm-embeddings-cache-producer"
	mediaCacheSize = 4096    // MiB
	maxMediaCache  = 1 << 21 // MiB
	itemSize       = 2       // MiB
)

// NewMediaProducer returns the parameters with their defaults.
func NewMediaProducer() epp.Plugin { return &MediaProducer{CacheSizeInMBPerServer: mediaCacheSize} }

// Correct implements epp.Corrector.
func (p *MediaProducer) Correct(warn epp.Report) {
	param.Correct(warn, "cacheSizeInMBPerServer", &p.CacheSizeInMBPerServer, p.CacheSizeInMBPerServer > 0, mediaCacheSize)
}

// Problems implements epp.Plugin.
func (p *MediaProducer) Problems(report epp.Report) {
	if p.CacheSizeInMBPerServer > maxMediaCache {
		report("cacheSizeInMBPerServer", "must be at most %d, got %d", maxMediaCache, p.CacheSizeInMBPerServer)
	}
}

// Build implements epp.Plugin.
func (p *MediaProducer) Build(b *epp.Builder) (any, error) {
	known := epp.Kept(b.Keep, "encoded items, by plugin "+b.Name, func() *encoded { return &encoded{bySlot: make(map[int]*items)} })
	return &Media{size: max(1, p.CacheSizeInMBPerServer/itemSize), profile: cmp.Or(p.EncodeProfile, string(epp.StageEncode)), encoded: known}, nil
}
