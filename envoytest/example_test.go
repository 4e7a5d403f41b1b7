package envoytest

import "fmt"

// The guest is a filter that runs the script in a header. Here it answers the request itself.
func Example() {
	h := guest.New(Options{Workers: 2})
	defer h.Close()
	if err := h.Start(); err != nil {
		fmt.Println(err)
		return
	}
	s := h.Worker(1).Request(get("request", "reply 429 too_many nope -1 retry-after=3"))
	fmt.Println(s.State())
	fmt.Println(s.Reply().Headers, string(s.Reply().Body))
	// Output:
	// Replied
	// [[:status 429] [retry-after 3] [content-length 4] [content-type text/plain]] nope
}
