package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/transfer/zmtp"
)

// EncodingSource is what an encoder says of an encoding that others may fetch, and a reader gets with the request: the members that vLLM's
// ECCPUConnector adds to an item of ec_transfer_params.
type EncodingSource struct {
	Host  string `json:"peer_host"`
	Port  int    `json:"peer_port"`
	Bytes int    `json:"size_bytes"`
	Shape []int  `json:"shape"` // rows and width
}

const (
	// encodingWidth is how many numbers of 4 bytes an encoding has for each token.
	encodingWidth = 64
	encodingBytes = 4 * imageTokens * encodingWidth
	// encodingsKept is how many encodings an engine keeps unless EncodingConfig says otherwise.
	encodingsKept = 256
	// fetchLimit is vLLM's longest wait for one encoding.
	fetchLimit = time.Minute
)

// ErrNoEncoding is how a request ends that has a reference to an encoding which its engine could not fetch. The engine goes on.
var ErrNoEncoding = errors.New("the encoding is not available, and the request has no image to encode")

// fetched are the encodings in an engine's memory: those that an encoder has made, or that a reader has fetched.
type fetched struct {
	listener net.Listener // of an encoder; else nil
	most     int          // encodings

	mu    sync.Mutex // guards the rest
	kept  map[string][]int
	order []string // hashes of kept, the oldest first
}

// openFetched returns the memory for encodings, nil for an engine that keeps them elsewhere.
func openFetched(c *EncodingConfig) (*fetched, error) {
	if !c.Fetch {
		return nil, nil
	}
	f := &fetched{most: c.Keep, kept: make(map[string][]int)}
	if c.Role != Encoder {
		return f, nil
	}
	l, err := net.Listen("tcp", c.Address)
	if err != nil {
		return nil, fmt.Errorf("listening for engines that fetch encodings: %w", err)
	}
	f.listener = l
	return f, nil
}

// serve answers engines that ask for an encoding by its hash, with null if there is none, until ctx ends.
func (f *fetched) serve(ctx context.Context) error {
	return zmtp.Serve(ctx, f.listener, func(hash []byte) [][]byte {
		tokens, _ := f.get(string(hash))
		answer, err := json.Marshal(tokens)
		if err != nil {
			panic(fmt.Sprintf("packing an encoding: %v", err)) // numbers can be marshalled
		}
		return [][]byte{answer}
	})
}

func (f *fetched) close() error {
	if f == nil || f.listener == nil {
		return nil
	}
	if err := f.listener.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func (f *fetched) get(hash string) (tokens []int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	tokens, ok = f.kept[hash]
	return tokens, ok
}

// keep takes an encoding, for which the oldest one may have to go.
func (f *fetched) keep(hash string, tokens []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.kept[hash]; !known {
		f.order = append(f.order, hash)
	}
	f.kept[hash] = tokens
	if len(f.order) > f.most {
		delete(f.kept, f.order[0])
		f.order = f.order[1:]
	}
}

// Source returns where other engines can fetch the encoding of an image. ok is false if it has been evicted, and on engines that are no
// encoders of EncodingConfig.Fetch.
func (e *Engine) Source(hash string) (s EncodingSource, ok bool) {
	f := e.connector.fetched
	if f == nil || f.listener == nil {
		return s, false
	}
	if _, ok = f.get(hash); !ok {
		return s, false
	}
	host, port, _ := net.SplitHostPort(f.listener.Addr().String()) // a listener's address has both
	s = EncodingSource{Host: host, Bytes: encodingBytes, Shape: []int{imageTokens, encodingWidth}}
	s.Port, _ = strconv.Atoi(port)
	return s, true
}

// fetch returns the encoding of an image from memory, or from its source. Without a source the engine encodes what it has: a reference has
// nothing, and ends it.
func (e *Engine) fetch(i Image) ([]int, error) {
	f := e.connector.fetched
	if tokens, ok := f.get(i.Hash); ok {
		return tokens, nil
	}
	if i.Source == nil {
		if i.Reference {
			return nil, errors.New("a reference, and no encoder that has what it names")
		}
		return drawTokens(i.Hash, e.cfg.Model.Vocabulary), nil
	}
	tokens, err := i.Source.read(i.Hash)
	if err != nil {
		e.cfg.Logger.Warn("fetching an encoding", "hash", i.Hash, "error", err)
		if i.Reference {
			return nil, ErrNoEncoding
		}
		return drawTokens(i.Hash, e.cfg.Model.Vocabulary), nil
	}
	f.keep(i.Hash, tokens)
	return tokens, nil
}

// read asks an encoder. A source that announces another size than the image has is not asked.
func (s *EncodingSource) read(hash string) (tokens []int, err error) {
	if len(s.Shape) != 2 || s.Shape[0] != imageTokens || s.Bytes != 4*s.Shape[0]*s.Shape[1] {
		return nil, fmt.Errorf("it is announced with %d bytes, %v", s.Bytes, s.Shape)
	}
	ctx, cancel := context.WithTimeout(context.Background(), fetchLimit)
	defer cancel()
	parts, err := zmtp.Ask(ctx, &net.Dialer{}, net.JoinHostPort(s.Host, strconv.Itoa(s.Port)), []byte(hash), 1<<16)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(parts[0], &tokens); err != nil {
		return nil, err
	}
	if len(tokens) != imageTokens {
		return nil, errors.New("the encoder does not have it")
	}
	return tokens, nil
}
