package localstore

// Break closes the file under the store: nothing can be saved any more.
func (s *Store) Break() {
	if err := s.db.Close(); err != nil {
		panic(err)
	}
}
