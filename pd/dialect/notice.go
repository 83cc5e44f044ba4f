package dialect

import (
	"strings"
	"unicode/utf8"
)

// A vLLM engine with the NIXL connector takes notices as notifications to its NIXL agents, and does not check the sender.
// Measured on vLLM 0.32.0: it frees the blocks within 0.1 s of a release, and keeps them while heartbeats arrive. It ignores
// an unknown id in a heartbeat. An unknown id in a release counts as a notification after expiry, with an error in its log,
// so the sidecar should release no hand-off twice.

// MaxNoticeID is the longest request id that notices name, in bytes. The engine makes the id from a word, the X-Request-Id of
// the leg and a suffix; the measured ones have up to 50 bytes.
const MaxNoticeID = 1 << 10

// HeartbeatFrame is the length of a heartbeat without the ids and their commas, in bytes.
const HeartbeatFrame = len(heartbeat)

const heartbeat = "HB:"

// nixlNotices implements Notices.
type nixlNotices struct{}

// Names implements Notices.
func (nixlNotices) Names(requestID string) bool { return Noticeable(requestID) }

// Release implements Notices.
func (nixlNotices) Release(requestID string) []byte {
	notice, _ := ReleaseNotice(requestID)
	return notice
}

// Heartbeats implements Notices.
func (nixlNotices) Heartbeats(requestIDs []string, size int) (messages [][]byte) {
	first, length := 0, HeartbeatFrame
	flush := func(end int) {
		if message, ok := HeartbeatNotice(requestIDs[first:end]); ok {
			messages = append(messages, message)
		}
		first, length = end, HeartbeatFrame
	}
	for i, id := range requestIDs {
		if length += len(id) + 1; length > size {
			flush(i)
			length += len(id) + 1
		}
	}
	flush(len(requestIDs))
	return messages
}

// Noticeable reports whether notices can name a request. Its id contains the client's X-Request-Id: a comma in it would make
// a heartbeat name two other requests, and invalid UTF-8 stops the engine's reader of notices.
func Noticeable(requestID string) bool {
	return requestID != "" && len(requestID) <= MaxNoticeID && utf8.ValidString(requestID) &&
		!strings.HasPrefix(requestID, heartbeat) && strings.IndexFunc(requestID, unfit) < 0
}

func unfit(r rune) bool { return r == ',' || r < ' ' || r >= 0x7f && r < 0xa0 }

// ReleaseNotice returns the message to a rank of the engine that no engine will read the hand-off of a request: "<id>:1",
// where 1 is the number of readers that the engine waits for. ok is false if the request is not Noticeable.
func ReleaseNotice(requestID string) (notice []byte, ok bool) {
	if !Noticeable(requestID) {
		return nil, false
	}
	return append([]byte(requestID), ":1"...), true
}

// HeartbeatNotice returns the message to a rank of the engine that the hand-offs of these requests will be read:
// "HB:<id>,<id>". From its arrival the engine keeps each for at least two thirds of kv_lease_duration. ok is false if there
// is no request, or one that is not Noticeable.
func HeartbeatNotice(requestIDs []string) (notice []byte, ok bool) {
	size := len(heartbeat) + len(requestIDs)
	for _, id := range requestIDs {
		if !Noticeable(id) {
			return nil, false
		}
		size += len(id)
	}
	if len(requestIDs) == 0 {
		return nil, false
	}
	notice = append(make([]byte, 0, size), heartbeat...)
	for i, id := range requestIDs {
		if i > 0 {
			notice = append(notice, ',')
		}
		notice = append(notice, id...)
	}
	return notice, true
}
