package read

import (
	"slices"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// layout says where the bodies of one API hold the prompt, the model and the cache salt.
type layout struct {
	table   *request.Table
	members []member // by index of the table's wants
	model   int      // index of the want
	salt    int
}

// messages are the members of a conversation that chat and messages have in common.
var messages = []member{
	{"messages.*.role", isText, inDialog, 0},
	{"messages.*.content", isText, inDialog, 0},
	{"messages.*.content.*", isPart, inDialog, 0},
	{"messages.*.content.*.type", isPartType, inDialog, 1},
	{"messages.*.content.*.text", isText, inDialog, 1},
}

// chat and responses are the members of these two APIs.
var (
	chat = slices.Concat(messages, []member{
		{"tools", isPart, inTools, 0},
		{"messages.*.tool_calls", isPart, inDialog, 0},
	})
	responses = []member{
		{"instructions", isText, inSystem, 0},
		{"input", isText, inDialog, 0},
		{"input.*", isPart, inDialog, 0},
		{"input.*.role", isText, inDialog, 0},
		{"input.*.content", isText, inDialog, 1},
		{"input.*.content.*", isPart, inDialog, 1},
		{"input.*.content.*.type", isPartType, inDialog, 2},
		{"input.*.content.*.text", isText, inDialog, 2},
	}
)

// layouts lists the members that make the prompt of each API. Members that few chat templates render are left out: names,
// reasoning that clients send back, documents.
var layouts = map[pd.API]*layout{
	pd.APIChat: newLayout(chat...),
	pd.APICompletions: newLayout(
		member{"prompt", isPrompt, inDialog, 0},
	),
	pd.APIMessages: newLayout(append(messages,
		member{"tools", isPart, inTools, 0},
		member{"system", isText, inSystem, 0},
		member{"system.*", isPart, inSystem, 0},
		member{"system.*.text", isText, inSystem, 1},
		member{"messages.*.content.*.content", isText, inDialog, 1},
		member{"messages.*.content.*.content.*", isPart, inDialog, 1},
		member{"messages.*.content.*.content.*.type", isPartType, inDialog, 2},
		member{"messages.*.content.*.content.*.text", isText, inDialog, 2},
	)...),
	pd.APIResponses: newLayout(append(responses, member{"tools", isPart, inTools, 0})...),
	pd.APIGenerate: newLayout(
		member{"token_ids", isPrompt, inDialog, 0},
	),
	pd.APISGLang: newSalted("extra_key",
		member{"text", isPrompt, inDialog, 0},
		member{"input_ids", isPrompt, inDialog, 0},
	),
	pd.APIEmbeddings: newLayout(
		member{"input", isPrompt, inDialog, 0},
	),
	pd.APICountTokens: newLayout(), // for the model's name

	// The calls of Vertex AI carry a chat, or a body of any API: its members say which.
	pd.APIVertexChat:   newLayout(chat...),
	pd.APIVertexRaw:    anyAPI,
	pd.APIVertexStream: anyAPI,
}

var anyAPI = newLayout(slices.Concat(chat, responses, []member{{"prompt", isPrompt, inDialog, 0}})...)

func newLayout(members ...member) *layout { return newSalted("cache_salt", members...) }

// newSalted makes a layout with the name of the member that is the cache salt.
func newSalted(salt string, members ...member) *layout {
	wants := []body.Want{{Path: salt}}
	for _, m := range members {
		wants = append(wants, body.Want{Path: m.path, Sink: true})
	}
	l := &layout{table: request.NewTable(nil, wants...)}
	l.members = make([]member, l.table.Members().Wants())
	for want := range l.members {
		path := l.table.Members().Path(want)
		switch path {
		case "model":
			l.model = want
		case salt:
			l.salt = want
		}
		for _, m := range members {
			if m.path == path {
				l.members[want] = m
			}
		}
	}
	return l
}
