package api

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/pyjson"
)

// modalities are the counts of tokens that are not text.
type modalities struct {
	Image int `json:"image"`
}

// imagePart is a part of a message that is an image, or a reference to its encoding.
type imagePart struct {
	Type  string `json:"type"`
	Image struct {
		URL string `json:"url"`
	} `json:"image_url"`
	Embeds struct {
		Grid []int `json:"image_grid_thw"`
	} `json:"image_embeds"`
	UUID string `json:"uuid"`
}

// readImages returns the images of a chat's messages, in their order. Messages that have another form have none.
func readImages(messages json.RawMessage) ([]sim.Image, *apiError) {
	var list []struct {
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(messages, &list) != nil {
		return nil, nil
	}
	var images []sim.Image
	for _, m := range list {
		var parts []json.RawMessage
		if json.Unmarshal(m.Content, &parts) != nil {
			continue
		}
		for _, raw := range parts {
			var p imagePart
			if json.Unmarshal(raw, &p) != nil {
				continue
			}
			switch p.Type {
			case "image_embeds":
				images = append(images, sim.Image{Hash: p.UUID, Reference: true, Grid: p.Embeds.Grid})
			case "image_url":
				if !loads(p.Image.URL) {
					return nil, badRequest("Failed to load image: cannot identify image file <_io.BytesIO object>")
				}
				images = append(images, sim.Image{Hash: hashOf(p)})
			}
		}
	}
	return images, nil
}

// hashOf returns what the engine calls an image. A client's own name is trusted, as by the real engine.
func hashOf(p imagePart) string {
	if p.UUID != "" {
		return p.UUID
	}
	digest := sha256.Sum256([]byte(p.Image.URL))
	return hex.EncodeToString(digest[:])
}

// loads reports whether an image can be read. Images elsewhere always can: they are not fetched here.
func loads(url string) bool {
	data, ok := strings.CutPrefix(url, "data:")
	if !ok {
		return true
	}
	_, data, _ = strings.Cut(data, ";base64,")
	content, err := base64.StdEncoding.DecodeString(data)
	return err == nil && strings.HasPrefix(http.DetectContentType(content), "image/")
}

// answerEncoder answers as an encoder does, which generates nothing, and says what it has encoded only in an answer that is no stream.
func (h *handler) answerEncoder(c *call, q *generateRequest) {
	if err := q.check(&h.cfg); err != nil {
		c.fail(err)
		return
	}
	if q.stream {
		s := c.stream()
		s.Data(q.roleChunk(chatChunk{ID: q.id, Object: "chat.completion.chunk", Created: time.Now().Unix(), Model: h.cfg.ServedModelName}, 0))
		s.Done()
		return
	}
	body := chatCompletion{
		ID: q.id, Object: "chat.completion", Created: time.Now().Unix(), Model: h.cfg.ServedModelName, SystemFingerprint: h.engine.Fingerprint(),
		Choices: []chatChoice{{Message: answerMessage{Role: "assistant"}, FinishReason: "stop"}},
		Usage:   totalUsage(q, []answer{{}}, true),
	}
	if q.returnTokenIDs {
		body.Choices[0].TokenIDs, body.PromptTokenIDs = []int{}, q.prompts[0]
	}
	if len(q.images) > 0 {
		body.ECTransferParams = h.announce(q.images)
	}
	c.JSON(http.StatusOK, body)
}

// setSources notes where the images of a request can be fetched. What has another form says nothing of an image.
func setSources(images []sim.Image, params json.RawMessage) {
	var items map[string]json.RawMessage
	if json.Unmarshal(params, &items) != nil {
		return
	}
	for i := range images {
		var s sim.EncodingSource
		if json.Unmarshal(items[images[i].Hash], &s) == nil && s.Host != "" {
			images[i].Source = &s
		}
	}
}

// announce returns the ec_transfer_params of an encoder's answer. An encoder that others fetch from announces nothing of an encoding that it
// has evicted, so that the media stays in the request.
func (h *handler) announce(images []sim.Image) any {
	at := map[string][]int{}
	var params pyjson.Object
	for i, image := range images {
		if at[image.Hash] = append(at[image.Hash], i); len(at[image.Hash]) == 1 {
			params = append(params, member(image.Hash, nil))
		}
	}
	for i := range params {
		item, metadata := pyjson.Object{member("item_indices", at[params[i].Name])}, pyjson.Object{member("image_grid_thw", sim.ImageGrid)}
		switch s, ok := h.engine.Source(params[i].Name); {
		case ok:
			item = append(item, member("metadata", metadata), member("peer_host", s.Host), member("peer_port", s.Port), member("size_bytes", s.Bytes), member("shape", s.Shape))
		case h.cfg.Encoding.Fetch:
			item = append(item, member("metadata", pyjson.Object{}))
		default:
			item = append(item, member("metadata", metadata))
		}
		params[i].Value = item
	}
	return params
}
