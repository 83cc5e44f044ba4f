package web

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/sim/model"
)

// ReadMessages reads the messages of chat and of /v1/messages. Content is text, or a list of parts, of which the texts count.
func ReadMessages(f *Fields) []model.Message {
	raw, ok := f.Require("messages")
	if !ok {
		return nil
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil || string(raw) == "null" {
		f.Wrong("list_type", "messages", "Input should be a valid list", raw)
		return nil
	}
	messages := make([]model.Message, 0, len(list))
	for i, raw := range list {
		where := "messages." + strconv.Itoa(i)
		var m map[string]json.RawMessage
		if json.Unmarshal(raw, &m) != nil || m == nil {
			f.Wrong("dict_type", where, "Input should be a valid dictionary", raw)
			continue
		}
		one := Fields{Members: m}
		role, ok := one.Members["role"]
		if !ok {
			f.Wrong("missing", where+".role", "Field required", raw)
			continue
		}
		var c model.Message
		if json.Unmarshal(role, &c.Role) != nil {
			f.Wrong("string_type", where+".role", "Input should be a valid string", role)
		}
		c.Text = ContentText(m["content"])
		messages = append(messages, c)
	}
	return messages
}

// ContentText joins the text parts of a message. Parts of other kinds have no tokens here.
func ContentText(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

// LoneSurrogate finds \ud800…\udfff without its other half, which no model.Tokenizer takes.
func LoneSurrogate(body []byte) bool {
	text := string(body)
	for {
		i := strings.Index(text, `\u`)
		if i < 0 || i+6 > len(text) {
			return false
		}
		if i > 0 && escaped(text[:i]) {
			text = text[i+2:]
			continue
		}
		code, err := strconv.ParseUint(text[i+2:i+6], 16, 32)
		text = text[i+6:]
		if err != nil || code < 0xD800 || code > 0xDFFF {
			continue
		}
		if code >= 0xDC00 || len(text) < 6 || text[:2] != `\u` {
			return true
		}
		low, err := strconv.ParseUint(text[2:6], 16, 32)
		if err != nil || low < 0xDC00 || low > 0xDFFF {
			return true
		}
		text = text[6:]
	}
}

// escaped reports whether the character after text is escaped: text ends with an odd number of backslashes.
func escaped(text string) bool {
	n := len(text) - len(strings.TrimRight(text, `\`))
	return n%2 == 1
}
