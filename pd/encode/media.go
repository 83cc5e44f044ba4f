package encode

import (
	"fmt"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// Media are the images, recordings and videos of a chat request, in its order.
type Media struct {
	of    *request.Request
	body  body.Body // the request's, without what clients may not send
	root  body.Member
	items []body.Member // of messages
	kinds []kind        // of items
	tail  [][]byte      // of the body of a leg, after the items
}

// kind is what an item is.
type kind uint8

const (
	none kind = iota
	image
	audio
	video
)

// The members that are found in a request, in the order of the wants.
const (
	wModel = iota
	wProcessor
	wReading
	wItem
	wType
	wImage
	wAudio
	wInputAudio
	wVideo
)

// members finds the items, and the members on which an encoding depends besides its item: the model, how items are read and how they
// are processed. vLLM's hash covers them.
var members = body.NewTable(
	body.Want{Path: "model"},
	body.Want{Path: "mm_processor_kwargs"},
	body.Want{Path: "media_io_kwargs"},
	body.Want{Path: "messages.*.content.*"},
	body.Want{Path: "messages.*.content.*.type"},
	body.Want{Path: "messages.*.content.*.image_url"},
	body.Want{Path: "messages.*.content.*.audio_url"},
	body.Want{Path: "messages.*.content.*.input_audio"},
	body.Want{Path: "messages.*.content.*.video_url"},
)

// memberKinds are the kinds of items by the member that has their content, and typeKinds by their type.
var (
	memberKinds = map[int]kind{wImage: image, wAudio: audio, wInputAudio: audio, wVideo: video}
	typeKinds   = map[string]kind{`"image_url"`: image, `"audio_url"`: audio, `"input_audio"`: audio, `"video_url"`: video}
)

// maxParts bounds the parts of messages, of which a scan keeps two members each. Longer conversations are not encoded elsewhere.
const maxParts = 8192

// MediaOf finds the media of a request. It returns nil if there are none, or if the request is of another API. An error says why they
// must be left to the engine that computes the prompt.
func MediaOf(r *request.Request) (*Media, error) {
	if r.API != pd.APIChat {
		return nil, nil
	}
	clean, err := r.Local()
	if err != nil {
		return nil, err
	}
	m := &Media{of: r}
	scan := new(body.Scanner)
	scan.Reset(members, body.Limits{Members: 2*maxParts + wItem}, nil)
	for _, segment := range clean.Segments {
		m.body.Append(segment)
		if _, err := scan.Write(segment); err != nil {
			return nil, err
		}
	}
	if err := scan.Close(); err != nil {
		return nil, err
	}
	m.root = scan.Root()
	if err := m.find(scan.Members()); err != nil || len(m.items) == 0 {
		return nil, err
	}
	m.tail = [][]byte{[]byte(`]}],"max_tokens":1,"stream":false`)}
	for want := wModel; want <= wReading; want++ {
		if v, ok := scan.Find(want); ok {
			m.tail = append(m.tail, fmt.Appendf(nil, `,"%s":`, members.Path(want)), m.body.Bytes(v.Value))
		}
	}
	m.tail = append(m.tail, []byte("}"))
	return m, nil
}

// find adds the items among the members of a body. The members of an item come after it.
func (m *Media) find(found []body.Member) error {
	for i := 0; i < len(found); i++ {
		item := found[i]
		if item.Want != wItem || item.Kind != body.Object {
			continue
		}
		var content, told kind
		typed := false
		for i+1 < len(found) && found[i+1].Want > wItem && found[i+1].Object == item.Value.Start {
			i++
			if found[i].Want == wType {
				typed, told = true, typeKinds[string(m.body.Bytes(found[i].Value))]
				continue
			}
			content = memberKinds[found[i].Want]
		}
		switch {
		case content == none:
			continue // text, or what the engine refuses
		case typed && told != content:
			return fmt.Errorf("the part of a message at byte %d is of one type and has the content of another", item.Value.Start)
		}
		m.items, m.kinds = append(m.items, item), append(m.kinds, content)
	}
	return nil
}

// Len returns the number of items.
func (m *Media) Len() int { return len(m.items) }

// head is the beginning of the body of a leg.
var head = []byte(`{"messages":[{"role":"user","content":[`)

// comma stands between items.
var comma = []byte(",")

// Leg returns the body of a leg with some of the items: the encoder need not see the text of the conversation.
func (m *Media) Leg(items []int) request.Payload {
	leg := request.Payload{Segments: [][]byte{head}}
	for i, item := range items {
		if i > 0 {
			leg.Segments = append(leg.Segments, comma)
		}
		leg.Segments = m.body.AppendSpan(leg.Segments, m.items[item].Value)
	}
	leg.Segments = append(leg.Segments, m.tail...)
	for _, s := range leg.Segments {
		leg.Length += int64(len(s))
	}
	return leg
}
