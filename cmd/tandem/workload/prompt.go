package workload

import (
	"hash/maphash"
	"math"
	"math/rand/v2"
	"strings"
)

// Cost is how many tokens an endpoint counts for a prompt: Fixed, for what a chat template adds, and PerWord for each word of
// Words.
type Cost struct{ Fixed, PerWord float64 }

// DefaultCost is assumed where an endpoint does not tell: the words are single tokens of the common vocabularies.
var DefaultCost = Cost{PerWord: 1}

// CostOf returns the cost by two prompts of different length: their numbers of words, and of tokens as the endpoint counted
// them. It reports false if the counts make no sense.
func CostOf(words, tokens [2]int) (Cost, bool) {
	perWord := float64(tokens[1]-tokens[0]) / float64(words[1]-words[0])
	fixed := float64(tokens[0]) - perWord*float64(words[0])
	if fixed < 0 { // words differ a little, and there is no template
		fixed, perWord = 0, float64(tokens[1])/float64(words[1])
	}
	if tokens[0] <= 0 || tokens[1] <= tokens[0] || perWord < 0.1 || perWord > 20 {
		return Cost{}, false
	}
	return Cost{fixed, perWord}, true
}

// words returns how many words make a prompt of so many tokens; an empty prompt is none.
func (c Cost) words(tokens int) int {
	return max(1, int(math.Round((float64(tokens)-c.Fixed)/c.PerWord)))
}

// vocabulary holds short, frequent words, which with the space before them are single tokens of the common vocabularies. Four
// bytes and a half each, they also agree with pickers that count four bytes as a token.
var vocabulary = strings.Fields("about after again also back been best body book call came case city come could data date days does done " +
	"down each early even every face fact far feel few find fire first five food form four free from full game gave girl give " +
	"good great hand hard have head hear help here high hold home hour house idea into just keep kind king know land large last " +
	"late law lead left less life light like line list live long look lost made main make many may mean men might mind more most " +
	"move much must name near need new next night note now off old once one only open other our out over own part past path plan " +
	"play point power put read real right road room said same saw say school sea see seen self sense set she short show side since " +
	"small some soon state still stop story such sun sure table take talk tell than that them then there these they thing think " +
	"this those three time told too took town tree true turn two under until upon use very view wall want war was water way week " +
	"well went were west what when where which while white who whole why will wind with woman word work world would year you")

// Words returns n words that follow from the seeds.
func Words(seed1, seed2 uint64, n int) string {
	var b strings.Builder
	appendWords(&b, seed1, seed2, n)
	return b.String()
}

func appendWords(b *strings.Builder, seed1, seed2 uint64, n int) {
	r := rand.New(rand.NewPCG(seed1, seed2))
	for range n {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(vocabulary[r.IntN(len(vocabulary))])
	}
}

// Writer writes the prompts of one round. Writers with different salts share no words, so that an engine's prefix cache from one
// round is of no use in another.
type Writer struct {
	Salt uint64
	Cost Cost
}

// NewSalt returns a salt that no other run has had.
func NewSalt() uint64 { return new(maphash.Hash).Sum64() ^ rand.Uint64() }

// ownText separates the seeds of what only one prompt has from those of shared blocks.
const ownText = 1 << 63

// Prompt returns the prompt of a call; number tells calls of a round apart.
func (w Writer) Prompt(c *Call, number int) string {
	total := w.Cost.words(c.Input)
	var b strings.Builder
	b.Grow(total * 5)
	written := 0
	for i, id := range c.Blocks {
		// Rounded ends, not rounded lengths: the block at one position has the same number of words in every prompt.
		end := min(total, int(math.Round(float64((i+1)*c.BlockTokens)/w.Cost.PerWord)))
		appendWords(&b, w.Salt, uint64(id)&^ownText, end-written)
		written = max(written, end)
	}
	for i, stream := range c.Streams {
		n := total - written
		if i < len(c.Streams)-1 {
			n = min(n, w.Cost.words(stream.Tokens))
		}
		appendWords(&b, w.Salt, stream.ID&^ownText, n)
		written += n
	}
	appendWords(&b, w.Salt, uint64(number)|ownText, total-written)
	return b.String()
}
