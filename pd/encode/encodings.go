package encode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// Encodings are what encoders have announced of the items of a request.
type Encodings struct {
	of      *Media
	hashes  []string // by item; "" = not encoded yet
	entries []entry  // each hash once
}

// entry is one encoding.
type entry struct {
	hash     string
	raw      json.RawMessage // what the encoder said of it
	metadata json.RawMessage // what a reference needs, nil if there is none
	located  bool            // the encoder says where other engines can fetch it
}

// NewEncodings returns those of a request of which nothing is encoded yet.
func (m *Media) NewEncodings() *Encodings {
	return &Encodings{of: m, hashes: make([]string, len(m.items))}
}

// errAnnouncesNothing is the error of an engine that is no encoder.
var errAnnouncesNothing = errors.New("the answer has no ec_transfer_params: is that engine an encoder (ec_role ec_producer)?")

// Add reads the answer to the leg of some of the items. After an error, the items are as before.
func (e *Encodings) Add(items []int, answer []byte) error {
	var said struct {
		Encodings map[string]json.RawMessage `json:"ec_transfer_params"`
	}
	if err := json.Unmarshal(answer, &said); err != nil {
		return fmt.Errorf("reading an encoder's answer: %w", err)
	}
	if len(said.Encodings) == 0 {
		return errAnnouncesNothing
	}
	hashes, about := make([]string, len(items)), make(map[string]entry, len(said.Encodings))
	for hash, raw := range said.Encodings {
		var one struct {
			Items    []int           `json:"item_indices"`
			Metadata json.RawMessage `json:"metadata"`
			Host     json.RawMessage `json:"peer_host"`
		}
		if err := json.Unmarshal(raw, &one); err != nil {
			return fmt.Errorf("reading what an encoder says of an item: %w", err)
		}
		if !isHash(hash) {
			return errors.New("the encoder names an item by something else than a hash of its content, so that no other engine finds it: " +
				"is --mm-processor-cache-gb=0 set on it?")
		}
		for _, i := range one.Items {
			if i < 0 || i >= len(items) || hashes[i] != "" {
				return fmt.Errorf("the encoder announces item %d of %d, or twice", i, len(items))
			}
			hashes[i] = hash
		}
		if !hasMembers(one.Metadata) {
			one.Metadata = nil
		}
		about[hash] = entry{hash, raw, one.Metadata, bytes.HasPrefix(one.Host, []byte(`"`))}
	}
	for i, hash := range hashes {
		if hash == "" {
			return fmt.Errorf("the encoder has not announced item %d of %d", i, len(items))
		}
	}
	for i, hash := range hashes {
		e.hashes[items[i]] = hash
		if e.find(hash) == nil {
			e.entries = append(e.entries, about[hash])
		}
	}
	return nil
}

// hasMembers reports whether what an encoder says of an item is enough for a reference. vLLM announces an empty object for an encoding that
// it has evicted, and where its processor had the item cached and no longer has the item's size: the engine that reads needs the media then.
func hasMembers(metadata json.RawMessage) bool {
	inside, isObject := bytes.CutPrefix(metadata, []byte("{"))
	return isObject && !bytes.HasPrefix(bytes.TrimLeft(inside, " \t\r\n"), []byte("}"))
}

// find returns the entry of a hash, nil if there is none.
func (e *Encodings) find(hash string) *entry {
	for i := range e.entries {
		if e.entries[i].hash == hash {
			return &e.entries[i]
		}
	}
	return nil
}

// shortestHash is that of the shortest hash of vLLM, in hex digits.
const shortestHash = 32

// isHash reports whether a name is a hash in hex digits.
func isHash(name string) bool {
	return len(name) >= shortestHash && len(name) <= 128 && strings.Trim(name, "0123456789abcdef") == ""
}

// Request returns the request as the engines that compute the prompt and generate get it. With references, images are replaced by
// references to their encodings if all items are images: an engine refuses an image beside a reference, and no other reference was seen
// to work. referenced says whether they were replaced. If nothing has to be changed, the result is the request itself.
func (e *Encodings) Request(c *Connector, references bool) (r *request.Request, referenced bool, err error) {
	m := e.of
	referenced = references && e.referable(c)
	if !referenced && !c.Params {
		return m.of, false, nil
	}
	var edit body.Edit
	edit.Reset(&m.body, m.root)
	if referenced {
		for i, item := range m.items {
			hash := e.hashes[i]
			edit.Replace(item, fmt.Appendf(nil, `{"type":"image_embeds","image_embeds":%s,"uuid":"%s"}`, e.find(hash).metadata, hash))
		}
	}
	if c.Params {
		edit.Add(m.root, "ec_transfer_params", e.params())
	}
	segments, err := edit.Segments(nil)
	if err != nil {
		return nil, false, err
	}
	made := &body.Body{}
	for _, s := range segments {
		made.Append(s)
	}
	r, err = m.of.Replaced(made)
	return r, referenced, err
}

// referable reports whether all items are images that a reference can name. An engine that has to fetch an encoding by the encoder's
// address fails a reference without one, since it has no media to encode either: that is what an encoder with another connector announces.
func (e *Encodings) referable(c *Connector) bool {
	for i, k := range e.of.kinds {
		if k != image {
			return false
		}
		if one := e.find(e.hashes[i]); one.metadata == nil || c.Params && !one.located {
			return false
		}
	}
	return true
}

// params returns the merged announcements.
func (e *Encodings) params() []byte {
	b := []byte{'{'}
	for i, one := range e.entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, '"'), one.hash...)
		b = append(append(b, '"', ':'), one.raw...)
	}
	return append(b, '}')
}
